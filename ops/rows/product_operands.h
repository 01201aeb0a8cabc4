#pragma once
// The operands of a matrix product: where their matrices lie, what a gemm reads in place, and
// copies of the rest.

#include <algorithm>

#include "core/device.h"
#include "ops/kinds/merge_dims.h"
#include "ops/rows/library_kernels.h"

namespace brrr::gemm_operands {

/// One operand as stacked matrices: strides in elements, batch strides aligned with the result's
/// batch dims (0 where it is broadcast).
struct Matrices {
  const TensorImpl* t;
  int64_t rows, cols, row_stride, col_stride;
  int64_t batch_stride[kMaxDims];
  Tensor own;  ///< What `t` points to where the input as it is would not do.

  /// A single dim is a row of the left operand, a column of the right one.
  Matrices(const TensorImpl& from, bool is_left) {
    if (from.ndim >= 2) {
      set(from);
      return;
    }
    const int64_t n = from.sizes[0], stride = from.strides[0];
    set_own(is_left ? memory_view(from, {1, n}, {n, stride}, from.offset)
                    : memory_view(from, {n, 1}, {stride, 1}, from.offset));
  }
  /// The right operand of a call, or its transpose.
  Matrices(const OpCall& c, bool transposed) : Matrices(*c.in[1], false) {
    if (!transposed) return;
    set_own(memory_view(*t, {cols, rows}, {col_stride, row_stride}, t->offset));
  }
  void set_own(const Tensor& other) {
    own = other;
    set(*own.impl());
  }

 private:
  void set(const TensorImpl& from) {
    const int n = from.ndim;
    t = &from;
    rows = from.sizes[n - 2];
    cols = from.sizes[n - 1];
    row_stride = from.strides[n - 2];
    col_stride = from.strides[n - 1];
  }
};

/// Whether gemm can read the matrix where it lies. A single row or column is never transposed, so
/// that a vector's product has the same bits whatever its stride.
inline bool gemm_layout(const Matrices& o, int64_t& ld, bool& trans) {
  const int64_t rows = std::max<int64_t>(o.rows, 1), cols = std::max<int64_t>(o.cols, 1);
  trans = false;
  ld = rows == 1 ? cols : o.row_stride;
  if ((o.col_stride == 1 || cols == 1) && ld >= cols) return true;
  trans = true;
  ld = o.col_stride;
  return rows > 1 && cols > 1 && o.row_stride == 1 && ld >= rows;
}

/// What gemm takes: a GPU multiplies 16-bit floats as they are.
inline DType product_dtype(const TensorImpl& t) {
  const bool as_it_is = t.device.type == DeviceType::CUDA && is_floating(t.dtype);
  return as_it_is ? t.dtype : compute_type(t.dtype);
}

/// Contiguous memory of the operand's shape in its product dtype. A transposed matrix stays one
/// (unless its rows will be joined): the product's bits depend on that, and must not depend on
/// whether a copy was made.
inline void make_copy(Matrices& o, bool may_transpose = true) {
  const TensorImpl& t = *o.t;
  int64_t ld;
  bool trans;
  const bool flip = gemm_layout(o, ld, trans) && trans && may_transpose;
  IntList sizes = t.size_list(), strides = t.stride_list();
  if (flip) {
    std::swap(sizes[t.ndim - 2], sizes[t.ndim - 1]);
    std::swap(strides[t.ndim - 2], strides[t.ndim - 1]);
  }
  const Tensor from = memory_view(t, sizes, strides, t.offset);
  const Tensor copy = raw_empty(sizes, product_dtype(t), t.device);
  copy_now(*copy.impl(), *from.impl());
  o.set_own(copy);
  if (flip) {
    std::swap(o.rows, o.cols);
    std::swap(o.row_stride, o.col_stride);
  }
}

/// Whether `n` dims are one walk with even steps, and that.
inline bool join_dims(int n, const int64_t* sizes, const int64_t* strides, int64_t& size,
                      int64_t& step) {
  int64_t all[kMaxDims], steps[kMaxDims];
  std::copy_n(sizes, n, all);
  std::copy_n(strides, n, steps);
  const bool one = merge_dims(n, all, 1, -1, [&](int) { return steps; }) == 1;
  size = all[0];
  step = steps[0];
  return one;
}

/// The leading dims joined into rows: one product instead of a batch of them. False where their
/// strides would not do.
inline bool join_rows(Matrices& o) {
  const TensorImpl& t = *o.t;
  const int last = t.ndim - 1;
  const bool joined = join_dims(last, t.sizes, t.strides, o.rows, o.row_stride);
  o.cols = t.sizes[last];
  o.col_stride = 1;
  if (o.rows == 1) o.row_stride = o.cols;
  return joined && (t.strides[last] == 1 || o.cols == 1) && o.row_stride >= o.cols;
}

inline void set_batch(Matrices& o, const TensorImpl& out, int batch_dims) {
  const int shift = batch_dims - (o.t->ndim - 2);
  for (int d = 0; d < batch_dims; ++d) {
    const bool broadcast = d < shift || (o.t->sizes[d - shift] == 1 && out.sizes[d] != 1);
    o.batch_stride[d] = broadcast ? 0 : o.t->strides[d - shift];
  }
}

}  // namespace brrr::gemm_operands
