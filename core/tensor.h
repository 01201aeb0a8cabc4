#pragma once
// The tensor handle that users hold. Members are declared here and defined where they belong:
// metadata in core, arithmetic and views in ops, differentiation in autograd.

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/int_list.h"
#include "core/intrusive.h"
#include "core/moved.h"
#include "core/scalar.h"

namespace brrr {

struct TensorImpl;
struct Node;
void destroy(TensorImpl*) noexcept;

/// A counted handle to an n-dimensional strided array. Copies share the array. In-place methods
/// (names ending in `_`) are const because they change the array, not the handle.
class Tensor {
 public:
  Tensor() = default;  ///< Undefined: holds nothing.
  explicit Tensor(Ref<TensorImpl> impl) noexcept : impl_(std::move(impl)) {}

  // --- metadata -------------------------------------------------------------------------------
  bool defined() const { return static_cast<bool>(impl_); }
  IntList sizes() const;
  IntList strides() const;          ///< In elements.
  int64_t size(int64_t dim) const;  ///< Negative dims count from the end.
  int64_t dim() const;
  int64_t numel() const;
  DType dtype() const;
  Device device() const;
  bool is_contiguous() const;
  int64_t storage_offset() const;  ///< In elements.
  bool is_same(const Tensor& o) const { return impl_ == o.impl_; }
  /// How often the storage has been written in place.
  uint32_t version() const;

  // --- host access (throws inside a recorded step) ----------------------------------------------
  /// Address of the first element; for a GPU tensor a device address, valid only in kernels.
  void* data_ptr() const;
  /// The typed address of the first element; throws unless T is the tensor's dtype. (T, here and
  /// below, is float, double, int64_t, int32_t, uint8_t or bool.)
  template <class T> T* data() const;
  /// The value of a one-element tensor converted to T.
  template <class T> T item() const;
  /// All elements, row-major, converted to T.
  template <class T> std::vector<T> to_vector() const;
  /// The tensor as PyTorch prints it.
  std::string to_string() const;

  // --- autograd ---------------------------------------------------------------------------------
  bool requires_grad() const;
  const Tensor& set_requires_grad(bool on = true) const;
  /// The same, as PyTorch spells it.
  const Tensor& requires_grad_(bool on = true) const { return set_requires_grad(on); }
  bool is_leaf() const;
  Tensor grad() const;                   ///< Undefined when no gradient has been accumulated.
  void set_grad(const Tensor& g) const;  ///< Keeps `g` itself, or a copy if it is expanded.
  /// Accumulates d(this)/d(leaf) into the leaves' grad; `gradient` defaults to 1 for one element.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  Tensor detach() const;  ///< The same data without history; shares storage and version.

  // --- views ------------------------------------------------------------------------------------
  Tensor view(const IntList& sizes) const;     ///< Never copies; one size may be -1.
  Tensor reshape(const IntList& sizes) const;  ///< A view where possible, else a copy.
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const;  ///< Transpose of a matrix.
  Tensor permute(const IntList& dims) const;
  Tensor slice(int64_t dim, int64_t start, int64_t end, int64_t step = 1) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor expand(const IntList& sizes) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze(int64_t dim) const;
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;
  Tensor contiguous() const;
  Tensor clone() const;

  // --- conversion --------------------------------------------------------------------------------
  Tensor to(DType dtype) const;
  /// Inside a graph-mode step, a CPU tensor that the step does not compute is copied to the device
  /// on every call, with the bytes that it has then.
  Tensor to(Device device) const;

  // --- pointwise ---------------------------------------------------------------------------------
  Tensor exp() const;
  Tensor expm1() const;
  Tensor log() const;
  Tensor log1p() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor tanh() const;
  Tensor sigmoid() const;
  Tensor erf() const;
  Tensor abs() const;
  Tensor sign() const;
  Tensor floor() const;
  Tensor ceil() const;
  Tensor round() const;
  Tensor relu() const;
  Tensor square() const;
  Tensor reciprocal() const;
  Tensor clamp(Scalar lo, Scalar hi) const;
  Tensor pow(Scalar e) const;
  Tensor pow(const Tensor& e) const;

  // --- reductions: no dims means all -------------------------------------------------------------
  Tensor sum(const IntList& dims = {}, bool keepdim = false) const;
  Tensor mean(const IntList& dims = {}, bool keepdim = false) const;
  Tensor prod(const IntList& dims = {}, bool keepdim = false) const;
  Tensor max(const IntList& dims = {}, bool keepdim = false) const;  ///< amax
  Tensor min(const IntList& dims = {}, bool keepdim = false) const;  ///< amin
  Tensor var(const IntList& dims = {}, bool unbiased = true, bool keepdim = false) const;
  Tensor norm(const IntList& dims = {}, bool keepdim = false) const;  ///< 2-norm
  Tensor logsumexp(const IntList& dims, bool keepdim = false) const;
  Tensor any(const IntList& dims = {}, bool keepdim = false) const;
  Tensor all(const IntList& dims = {}, bool keepdim = false) const;
  Tensor argmax(int64_t dim, bool keepdim = false) const;
  std::pair<Tensor, Tensor> max_with_indices(int64_t dim, bool keepdim = false) const;
  Tensor argmin(int64_t dim, bool keepdim = false) const;
  Tensor softmax(int64_t dim) const;
  Tensor log_softmax(int64_t dim) const;

  // --- library -----------------------------------------------------------------------------------
  Tensor matmul(const Tensor& o) const;
  Tensor index_select(int64_t dim, const Tensor& index) const;
  Tensor gather(int64_t dim, const Tensor& index) const;
  Tensor tril(int64_t diagonal = 0) const;
  Tensor triu(int64_t diagonal = 0) const;
  Tensor cumsum(int64_t dim) const;
  Tensor argsort(int64_t dim = -1, bool descending = false) const;
  std::pair<Tensor, Tensor> sort(int64_t dim = -1, bool descending = false) const;
  std::pair<Tensor, Tensor> topk(int64_t k, int64_t dim = -1, bool largest = true) const;

  // --- in place ----------------------------------------------------------------------------------
  const Tensor& add_(const Tensor& o) const;
  const Tensor& sub_(const Tensor& o) const;
  const Tensor& mul_(const Tensor& o) const;
  const Tensor& div_(const Tensor& o) const;
  const Tensor& add_(Scalar o) const;
  const Tensor& sub_(Scalar o) const;
  const Tensor& mul_(Scalar o) const;
  const Tensor& div_(Scalar o) const;
  const Tensor& copy_(const Tensor& src) const;  ///< `src` may be on another device.
  const Tensor& fill_(Scalar v) const;
  const Tensor& zero_() const;
  const Tensor& clamp_(Scalar lo, Scalar hi) const;
  const Tensor& scatter_add_(int64_t dim, const Tensor& index, const Tensor& src) const;
  const Tensor& operator+=(const Tensor& o) const { return add_(o); }
  const Tensor& operator-=(const Tensor& o) const { return sub_(o); }
  const Tensor& operator*=(const Tensor& o) const { return mul_(o); }
  const Tensor& operator/=(const Tensor& o) const { return div_(o); }
  const Tensor& operator+=(Scalar o) const { return add_(o); }
  const Tensor& operator-=(Scalar o) const { return sub_(o); }
  const Tensor& operator*=(Scalar o) const { return mul_(o); }
  const Tensor& operator/=(Scalar o) const { return div_(o); }

  TensorImpl* impl() const { return impl_.get(); }
  TensorImpl* detach_impl() noexcept { return impl_.detach(); }

 private:
  Ref<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& os, const Tensor& t);

/// While one of these lives, operations on this thread record no gradients.
class NoGradGuard : NotCopied {
 public:
  NoGradGuard() : NoGradGuard(false) {}

 protected:
  explicit NoGradGuard(bool enabled);

 private:
  Held<bool> enabled_;
};
/// The opposite: gradients are recorded again.
class EnableGradGuard : public NoGradGuard {
 public:
  EnableGradGuard() : NoGradGuard(true) {}
};
bool grad_enabled();

}  // namespace brrr

// The handle's copies and destruction are inline; they need the object.
#include "core/tensor_impl.h"  // IWYU pragma: keep
