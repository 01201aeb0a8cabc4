#pragma once
// How the rows of index.cpp walk their tensors, and their kernels, on any device.

#include <algorithm>

#include "core/op.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

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

/// Throws unless the index, input `operand`, is in [0, size); `dim` is for the message.
void check_index(const OpCall& c, int operand, int dim, int64_t size);

// The CPU's kernels take an index that has been checked. On a GPU, positions outside the range are
// noted (core/device_kernel.h), read as 0, and nothing is added there.

/// out = x, input 0, at the positions that input 1 names: out[.., j, ..] = x[.., index[.., j, ..],
/// ..] along `dim` for an element_walk, out[j] = x[index[j]] for a slice_walk.
void pick(OpCall& c, int dim, MakeWalk make_walk);
void pick_cuda(const OpCall& c, const Walk& w, const TensorImpl& x, const TensorImpl& out, int dim);
/// out = base (input 0, or zeros when it is null, or out itself) with src (input 2) added where
/// pick() would read. Duplicates add up in index order.
void accumulate(OpCall& c, int dim, MakeWalk make_walk);
void add_cuda(const OpCall& c, const Walk& w, const TensorImpl& out, const TensorImpl& src,
              int dim);
/// What they take: a dense index; a sum its terms besides, where they have another dtype or memory
/// than it.
int64_t pick_scratch(const OpCall& c);
int64_t sum_scratch(const OpCall& c);

}  // namespace brrr
