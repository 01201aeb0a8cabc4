#pragma once
// How the rows of index.cpp walk their tensors, and their kernels, on any device.

#include "core/device_kernel.h"
#include "core/op.h"

namespace brrr {

/// Element (i0, i1, ..) of the small tensor belongs to element (i0, .., index(i0, i1, ..), ..) of
/// the big one, the index replacing the coordinate of `dim`. Sizes are the small one's; strides
/// count elements. Neighbouring dims that all walk alike are merged; the order stays row-major. The
/// last two lines are for a GPU's kernels alone.
BRRR_DEVICE_STRUCT(Walk, {
  const long* at;
  int ndim, dim;
  long size[8], big[8], small[8], index[8];
  char *big_data, *small_data, *fault;
  long op, n, limit;
});
static_assert(kMaxDims == 8);

// The CPU's kernels take an index that has been checked. On a GPU, positions outside the range are
// noted (core/device_kernel.h), read as 0, and nothing is added there.

/// out = x, input 0, at the positions that input 1 names along the call's dim: element by element,
/// out[.., j, ..] = x[.., index[.., j, ..], ..], where the index has the shape of out; else slice
/// by slice, out[j] = x[index[j]].
void pick(OpCall& c);
void pick_cuda(const OpCall& c, const Walk& w);
/// out = base (input 0, or zeros when it is null, or out itself) with src (input 2) added where
/// pick() would read. Duplicates add up in index order.
void accumulate(OpCall& c);
void add_cuda(const OpCall& c, const Walk& w, const TensorImpl& src);

}  // namespace brrr
