#pragma once
// How ops that read or add at named positions walk their tensors, on any device.

#include <algorithm>

#include "core/op.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

/// The index as contiguous memory.
struct Index {
  const int64_t* at;
  Tensor copy;

  Index(const TensorImpl& t, bool overwritten) {
    at = reinterpret_cast<const int64_t*>(t.data());
    if (t.contiguous() && !overwritten) return;
    copy = raw_empty(t.size_list(), kInt64, t.device);
    copy_now(*copy.impl(), t);
    at = reinterpret_cast<const int64_t*>(copy.impl()->data());
  }
  Index(const OpCall& c, const TensorImpl& t)
      : Index(t, c.into && c.out[0].impl()->storage == t.storage) {}
};

/// Element (i0, i1, ..) of the small tensor belongs to element (i0, .., index(i0, i1, ..), ..) of
/// the big one, the index replacing the coordinate of `dim`. Sizes are the small one's; strides
/// count elements. Neighbouring dims that all walk alike are merged; the order stays row-major.
struct Walk {
  int ndim = 0, dim = 0;
  int64_t size[kMaxDims], big[kMaxDims], small[kMaxDims], index[kMaxDims];
  const int64_t* at = nullptr;

  void push(int64_t n, int64_t b, int64_t s, int64_t i, bool indexed) {
    const int last = ndim - 1;
    if (!indexed && n == 1) return;
    if (indexed) {
      dim = ndim;
    } else if (ndim > 0 && dim != last && big[last] == b * n && small[last] == s * n &&
               index[last] == i * n) {
      size[last] *= n;
      big[last] = b;
      small[last] = s;
      index[last] = i;
      return;
    }
    size[ndim] = n;
    big[ndim] = b;
    small[ndim] = s;
    index[ndim++] = i;
  }
};

/// The index has the small tensor's shape.
inline Walk element_walk(const TensorImpl& big, const TensorImpl& small, const int64_t* index,
                         int dim) {
  Walk w;
  w.dim = -1;
  w.at = index;
  const IntList steps = contiguous_strides(small.size_list());
  for (int d = 0; d < small.ndim; ++d) {
    w.push(small.sizes[d], big.strides[d], small.strides[d], steps[d], d == dim);
  }
  if (small.ndim == 0) w.push(1, 1, 1, 1, true);
  return w;
}

/// One index for each slice of the small tensor along `dim`, which may be several of its dims:
/// those of the index of an embedding.
inline Walk slice_walk(const TensorImpl& big, const TensorImpl& small, const int64_t* index,
                       int dim) {
  Walk w;
  w.dim = -1;
  w.at = index;
  const int extra = small.ndim - big.ndim;  // The small tensor is contiguous if there are any.
  for (int d = 0; d < dim; ++d) w.push(small.sizes[d], big.strides[d], small.strides[d], 0, false);
  int64_t slices = 1;
  for (int d = dim; d <= dim + extra; ++d) slices *= small.sizes[d];
  const int64_t step = extra >= 0 ? small.strides[dim + extra] : 0;
  w.push(slices, big.strides[dim], step, 1, true);
  for (int d = dim + 1; d < big.ndim; ++d) {
    w.push(small.sizes[d + extra], big.strides[d], small.strides[d + extra], 0, false);
  }
  return w;
}

using MakeWalk = Walk (*)(const TensorImpl&, const TensorImpl&, const int64_t*, int);

// --- memory --------------------------------------------------------------------------------------

/// Whether two tensors of one shape are the same elements.
inline bool same_memory(const TensorImpl& a, const TensorImpl& b) {
  return a.data() == b.data() && a.dtype == b.dtype &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
}

/// The tensor in another dtype or memory.
inline Tensor copy_of(const TensorImpl& t, DType dtype) {
  Tensor copy = raw_empty(t.size_list(), dtype, t.device);
  copy_now(*copy.impl(), t);
  return copy;
}

}  // namespace brrr
