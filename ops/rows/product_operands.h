#pragma once
// The operands of a matrix product: the layout of their matrices, which of them a gemm reads in
// place, and copies of the others.

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
  Tensor own;  ///< Owns `t` if that is not the input itself.

  /// A 1-d tensor is a row as left operand, a column as right one.
  Matrices(const TensorImpl& from, bool is_left) {
    if (from.ndim >= 2) {
      set(from);
      return;
    }
    const int64_t n = from.sizes[0], stride = from.strides[0];
    set_own(is_left ? memory_view(from, {1, n}, {n, stride}, from.offset)
                    : memory_view(from, {n, 1}, {stride, 1}, from.offset));
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

/// Whether gemm can read a matrix in place, whether as a transposed one, and the leading dimension.
struct Layout {
  bool fits, trans;
  int64_t ld;
};
/// A single row or column is never transposed, so that a vector's product has the same bits
/// whatever its stride.
inline Layout gemm_layout(const Matrices& o) {
  const int64_t rows = std::max<int64_t>(o.rows, 1), cols = std::max<int64_t>(o.cols, 1);
  const int64_t ld = rows == 1 ? cols : o.row_stride;
  if ((o.col_stride == 1 || cols == 1) && ld >= cols) return {true, false, ld};
  const bool fits = rows > 1 && cols > 1 && o.row_stride == 1 && o.col_stride >= rows;
  return {fits, true, o.col_stride};
}

/// The dtype that gemm multiplies: a GPU takes 16-bit floats, the CPU their compute type.
inline DType product_dtype(const TensorImpl& t) {
  const bool as_it_is = t.device.type == DeviceType::CUDA && is_floating(t.dtype);
  return as_it_is ? t.dtype : compute_type(t.dtype);
}

/// Whether it is multiplied in place: it has the product dtype and, if floating, a layout for gemm.
inline bool readable(const Matrices& o) {
  const DType dtype = o.t->dtype;
  return dtype == product_dtype(*o.t) && (!is_floating(dtype) || gemm_layout(o).fits);
}

/// The transposed matrices.
inline Tensor transposed(const TensorImpl& t) { return swapped(t, t.ndim - 2, t.ndim - 1); }

/// Replaces the operand by a dense copy in its product dtype. A transposed matrix stays transposed
/// (unless its leading dims will be flattened): the product's bits depend on that, and must not
/// depend on whether a copy was made.
inline void make_copy(Matrices& o, bool may_transpose = true) {
  const DType dtype = product_dtype(*o.t);
  const Layout now = gemm_layout(o);
  const bool transposes = now.fits && now.trans && may_transpose;
  o.set_own(transposes ? transposed(*copied(*transposed(*o.t).impl(), dtype).impl())
                       : copied(*o.t, dtype));
}

/// Whether `n` dims merge into one, and its size and stride.
inline bool flatten_dims(int n, const int64_t* sizes, const int64_t* strides, int64_t& size,
                         int64_t& step) {
  int64_t all[kMaxDims], steps[kMaxDims];
  std::copy_n(sizes, n, all);
  std::copy_n(strides, n, steps);
  const bool one = merge_dims(n, all, 1, -1, [&](int) { return steps; }) == 1;
  size = all[0];
  step = steps[0];
  return one;
}

/// Flattens the leading dims into rows: one product instead of a batch. False if the strides do not
/// allow it.
inline bool flatten_rows(Matrices& o) {
  const TensorImpl& t = *o.t;
  const int last = t.ndim - 1;
  const bool merged = flatten_dims(last, t.sizes, t.strides, o.rows, o.row_stride);
  o.cols = t.sizes[last];
  o.col_stride = 1;
  if (o.rows == 1) o.row_stride = o.cols;
  return merged && (t.strides[last] == 1 || o.cols == 1) && o.row_stride >= o.cols;
}

inline void set_batch(Matrices& o, int batch_dims) {
  const int shift = batch_dims - (o.t->ndim - 2);
  for (int d = 0; d < batch_dims; ++d) {
    o.batch_stride[d] = d < shift || o.t->sizes[d - shift] == 1 ? 0 : o.t->strides[d - shift];
  }
}

/// Broadcasts the operand over the batch of the result. For a GPU, whose library takes one batch
/// stride, an operand without one is copied, once for each index of the batch.
inline void broadcast_batch(Matrices& o, const TensorImpl& out, int dims) {
  set_batch(o, dims);
  int64_t n, step;
  if (out.device == kCPU || flatten_dims(dims, out.sizes, o.batch_stride, n, step)) return;
  const TensorImpl& t = *o.t;
  IntList sizes = out.size_list(), strides(o.batch_stride, static_cast<size_t>(dims));
  for (int d = 0; d < 2; ++d) {
    sizes[dims + d] = t.sizes[t.ndim - 2 + d];
    strides.push_back(t.strides[t.ndim - 2 + d]);
  }
  const Tensor all = memory_view(t, sizes, strides, t.offset);
  o.t = all.impl();
  make_copy(o);
  set_batch(o, dims);
}

// --- tensor cores --------------------------------------------------------------------------------

// Tensor cores load 16 bytes at a time: if a row of an operand or of the result is no multiple of
// that, as for logits of 50257 classes, the library's kernels have a seventh of the speed. A large
// product then takes padded operands: copies, unless the plan has padded them (product_room).
struct Padding {
  int64_t m, n, k;  ///< Sizes of the product, with padding.
  bool any = false, result = false;

  Padding(const Matrices& a, const Matrices& b, DType dtype, Device device)
      : m(a.rows), n(b.cols), k(a.cols) {
    const auto size = static_cast<int64_t>(itemsize(dtype));
    const bool tensor_cores =
        device.type == DeviceType::CUDA && (size == 2 || (dtype == kFloat32 && allow_tf32()));
    if (!tensor_cores) return;
    const int64_t pack = 16 / size;
    const auto padded = [&](int64_t n) { return (n + pack - 1) / pack * pack; };
    const bool trans_a = gemm_layout(a).trans, trans_b = gemm_layout(b).trans;
    const int64_t all_m = trans_a ? padded(m) : m, all_n = padded(n);
    const int64_t all_k = trans_a && !trans_b ? k : padded(k);
    result = m != all_m || n != all_n;
    const int64_t moved = 2 * size *
                          ((m != all_m || k != all_k ? m * k : 0) +
                           (n != all_n || k != all_k ? k * n : 0) + (result ? m * n : 0));
    // Pays if the product has more flops per byte moved than the GPU does while moving one, and
    // takes longer than the few launches of the copies.
    constexpr double kFlopsPerByte = 64, kFlopsOfLaunches = 1 << 30;
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
    const double worth = std::max(kFlopsPerByte * static_cast<double>(moved), kFlopsOfLaunches);
    any = moved > 0 && flops >= worth;
    if (any) m = all_m, n = all_n, k = all_k;
  }
};

/// Whether the storage has room for such a matrix from the tensor's offset on, in writable gaps.
inline bool has_room(const TensorImpl& t, int64_t rows, int64_t cols, const IntList& steps) {
  const int64_t end = t.offset + (rows - 1) * steps[0] + (cols - 1) * steps[1] + 1;
  return t.storage->gaps &&
         end * static_cast<int64_t>(itemsize(t.dtype)) <= static_cast<int64_t>(t.storage->bytes);
}

/// Pads the operand to `rows` and `cols` with zeros.
inline void pad(Matrices& o, int64_t rows, int64_t cols) {
  if (rows == o.rows && cols == o.cols) return;
  const IntList steps = gemm_layout(o).trans ? IntList{1, rows} : IntList{cols, 1};
  const bool there =
      steps == IntList{o.row_stride, o.col_stride} && has_room(*o.t, rows, cols, steps);
  const Tensor all = there ? memory_view(*o.t, {rows, cols}, steps, o.t->offset)
                           : raw_empty({rows * cols}, o.t->dtype, o.t->device);
  const auto part = [&](int64_t row, int64_t col, int64_t n_rows, int64_t n_cols) {
    const int64_t at = all.impl()->offset + row * steps[0] + col * steps[1];
    return memory_view(*all.impl(), {n_rows, n_cols}, steps, at);
  };
  zero_now(*part(o.rows, 0, rows - o.rows, cols).impl());
  zero_now(*part(0, o.cols, o.rows, cols - o.cols).impl());
  if (!there) {
    const IntList own{o.row_stride, o.col_stride};
    const Tensor from = memory_view(*o.t, {o.rows, o.cols}, own, o.t->offset);
    copy_now(*part(0, 0, o.rows, o.cols).impl(), *from.impl());
  }
  o.set_own(part(0, 0, rows, cols));
}

}  // namespace brrr::gemm_operands
