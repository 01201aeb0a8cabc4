#pragma once
// How the ops of index.cpp iterate over their tensors, and their kernels for each device.

#include "core/device_kernel.h"
#include "core/op.h"

namespace brrr {

/// Element (i0, i1, ..) of the small tensor corresponds to element (i0, .., index(i0, i1, ..), ..)
/// of the big one, the index replacing the coordinate of `dim`. Sizes are the small one's; strides
/// are in elements. Adjacent dims are merged where all tensors allow it; the order stays row-major.
/// Only a GPU's kernels use the last two lines.
BRRR_DEVICE_STRUCT(Walk, {
  const long* at;
  int ndim, dim;
  long size[8], big[8], small[8], index[8];
  char *big_data, *small_data, *fault;
  long op, n, limit;
});
static_assert(kMaxDims == 8);

// The CPU's kernels require a checked index. On a GPU, positions out of range are recorded
// (core/device_kernel.h), read as 0, and nothing is added there.

/// out = x (input 0) at the positions in index (input 1) along the call's dim: element by element,
/// out[.., j, ..] = x[.., index[.., j, ..], ..], if the index has the shape of out; else slice by
/// slice, out[j] = x[index[j]].
void pick(OpCall& c);
void pick_cuda(const OpCall& c, const Walk& w);
/// out = base (input 0, or zeros if it is null, or out itself) with src (input 2) added where
/// pick() would read. Duplicates accumulate in index order.
void accumulate(OpCall& c);
void add_cuda(const OpCall& c, const Walk& w, const TensorImpl& src);

}  // namespace brrr
