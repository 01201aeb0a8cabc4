#pragma once
// What a Tensor handle points to. Internal: users see core/tensor.h.

#include <functional>

#include "core/tensor.h"

namespace brrr {

struct Recorder;
struct Node;
void destroy(Node*) noexcept;

/// A block of memory. In a recorded step it may be a placeholder: `data` is null and `pass` is the
/// recording it belongs to; when the step has run, survivors get their memory.
struct Storage {
  RefCount refs;
  uint32_t version = 0;         ///< Counts in-place writes; saved tensors remember it.
  void* data = nullptr;
  size_t bytes = 0;
  Device device;
  bool owned = true;            ///< From the backend's allocator (else `release` tells).
  bool grad_views = false;      ///< A differentiable view of it exists.
  uint32_t slot = 0;            ///< Number of the placeholder in its pass.
  Recorder* pass = nullptr;     ///< The recording it is a placeholder of.
  std::function<void()>* release = nullptr;  ///< For memory that somebody else owns.
  const char* lost = nullptr;   ///< Set when a placeholder outlived its pass: the op that made it.
};
void destroy(Storage*) noexcept;

/// Flags that send an op to the slow path when set on any input.
enum TensorFlag : uint8_t {
  kRequiresGrad = 1,   ///< A leaf that wants a gradient, or the result of one.
  kStrided = 2,        ///< Not contiguous.
  kForeign = 4,        ///< Not on the CPU.
};

struct TensorImpl {
  RefCount refs;
  DType dtype;
  Device device;
  uint8_t ndim;
  uint8_t flags;
  uint8_t output = 0;        ///< Which output of grad_fn this is.
  bool is_view = false;      ///< Made by a view op under grad mode.
  uint32_t value;            ///< Number in the pass of the storage (placeholders only).
  int64_t offset;            ///< Elements from the start of the storage.
  int64_t numel;
  Storage* storage;
  Node* grad_fn;             ///< Counted; null for leaves.
  TensorImpl* grad;          ///< Counted; leaves only.
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];

  char* data() const {
    return static_cast<char*>(storage->data) + offset * static_cast<int64_t>(itemsize(dtype));
  }
  bool requires_grad() const { return flags & kRequiresGrad; }
  bool contiguous() const { return !(flags & kStrided); }
  bool same_shape(const TensorImpl& o) const {
    if (ndim != o.ndim) return false;
    for (int i = 0; i < ndim; ++i) {
      if (sizes[i] != o.sizes[i]) return false;
    }
    return true;
  }
  IntList size_list() const { return {sizes, ndim}; }
  IntList stride_list() const { return {strides, ndim}; }
};

/// Shape, dtype and device of a tensor without its data.
struct Meta {
  IntList sizes;
  DType dtype = kFloat32;
  Device device;
};

/// A storage object without memory (count 1).
Storage* new_storage(Device device, size_t bytes);
/// Backend memory for a storage without any; throws brrr::Error when there is none.
void allocate(Storage& s);
/// A contiguous tensor object over `storage`, whose reference it takes.
TensorImpl* new_impl(Storage* storage, DType dtype, const IntList& sizes);
/// A tensor object with the given layout; takes the storage's reference.
TensorImpl* new_impl(Storage* storage, DType dtype, const IntList& sizes, const IntList& strides,
                     int64_t offset);
/// A contiguous tensor object of `a`'s shape over `storage`, whose reference it takes.
TensorImpl* new_impl_like(Storage* storage, DType dtype, const TensorImpl& a);
/// Uninitialised contiguous memory on `device`; never recorded, for kernels' own use.
Tensor raw_empty(const IntList& sizes, DType dtype, Device device);
/// "float32[4, 3]", for error messages.
std::string describe(const TensorImpl* t);
/// Whether the layout is row-major without gaps.
bool is_contiguous(const int64_t* sizes, const int64_t* strides, int ndim);

}  // namespace brrr
