#pragma once
// Building blocks of kernels over rows: folds in the order of ops/kinds/reduction.h ("rows"), maps,
// and operands as dense rows of the compute type.
//
// A kernel takes lambdas f(i, lanes) that return elements i .. i + lanes - 1 of the row as a
// vector, lanes <= 16; the other lanes may hold anything. They are called once for each element and
// in order, so they may store what they compute.

#include "core/backend.h"
#include "ops/kinds/composite.h"
#include "ops/vocabulary/num.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/reduction.h"
#include "ops/vocabulary/vec_fold.h"

namespace brrr {

inline constexpr int64_t kRowGrain = 1 << 15;  ///< Elements that justify a thread.

template <class V, class F> Lane<V> sum_row(int64_t n, const F& f) {
  Lane<V> sum;
  vx::fold_rows([&f](long) { return f; }, 1, n, V{}, [](V a, V b) { return a + b; }, &sum);
  return sum;
}

/// A tensor's elements, dense in a compute type: in place, or converted and packed. Null for null.
class DenseInput {
 public:
  DenseInput() = default;
  /// Copies in any case if `always`.
  DenseInput(const TensorImpl* t, DType compute, bool always = false) {
    if (!t) return;
    if (always || t->dtype != compute || !t->contiguous()) {
      copy_ = copied(*t, compute);
      t = copy_.impl();
    }
    data_ = t->data();
  }
  /// n elements of the same value.
  static DenseInput filled(int64_t n, DType compute, Device device, double value) {
    DenseInput d;
    d.copy_ = raw_empty({n}, compute, device);
    char* const to = d.copy_.impl()->data();
    if (compute == kFloat64)
      std::fill_n(reinterpret_cast<double*>(to), n, value);
    else
      std::fill_n(reinterpret_cast<float*>(to), n, static_cast<float>(value));
    d.data_ = to;
    return d;
  }
  /// Bytes of planned scratch memory that it takes.
  static int64_t bytes(const TensorImpl& t, DType compute) {
    const bool copied = t.dtype != compute || !t.contiguous();
    return copied ? scratch_for(t.numel, static_cast<int64_t>(itemsize(compute))) : 0;
  }
  template <class T> const T* as() const { return static_cast<const T*>(data_); }

 private:
  Tensor copy_;
  const void* data_ = nullptr;
};

/// One matrix per index of the leading dims, read in place if its rows are contiguous there (or
/// need not be), else from a packed copy.
class MatrixInput {
 public:
  static bool is_copied(const TensorImpl* t, DType compute, bool any_columns = false) {
    if (!t || (t->dtype == kBool && any_columns)) return false;
    const int last = t->ndim - 1;
    const bool contiguous = t->strides[last] == 1 || t->sizes[last] <= 1;
    return t->dtype != compute || !(contiguous || any_columns);
  }
  MatrixInput(const TensorImpl* t, DType compute, bool any_columns = false) : t_(t) {
    if (!is_copied(t, compute, any_columns)) return;
    copy_ = copied(*t, compute);
    t_ = copy_.impl();
  }
  template <class T> const T* at(int64_t matrix) const {
    if (!t_) return nullptr;
    int64_t offset = 0;
    for (int d = t_->ndim - 3; d >= 0; --d) {
      offset += matrix % t_->sizes[d] * t_->strides[d];
      matrix /= t_->sizes[d];
    }
    return reinterpret_cast<const T*>(t_->data()) + offset;
  }
  /// The tensor that holds the matrices; null for null.
  const TensorImpl* tensor() const { return t_; }
  int64_t row() const { return t_ ? t_->strides[t_->ndim - 2] : 0; }
  int64_t col() const { return t_ ? t_->strides[t_->ndim - 1] : 0; }

 private:
  const TensorImpl* t_;
  Tensor copy_;
};

/// DenseInput's counterpart for a contiguous output; finish() rounds to its dtype.
class DenseOutput {
 public:
  DenseOutput(const Tensor& t, DType compute) : out_(*t.impl()) {
    if (out_.dtype != compute) scratch_ = raw_empty(out_.size_list(), compute, out_.device);
  }
  template <class T> T* as() { return reinterpret_cast<T*>(memory().data()); }
  const TensorImpl& memory() const { return scratch_.defined() ? *scratch_.impl() : out_; }
  void finish() {
    if (scratch_.defined()) copy_now(out_, *scratch_.impl());
  }

 private:
  TensorImpl& out_;
  Tensor scratch_;
};

}  // namespace brrr
