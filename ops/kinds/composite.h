#pragma once
// The composite row: an op that is a decomposition into other ops, with a fast kernel beside it.
//
// The kernel does the decomposition's arithmetic in its order (see row_kernel.h), and tests hold
// the two equal to the last bit in float32; a row whose kernel has an order of its own says how far
// it may be off. 16-bit floats are widened first and rounded once, at the end, in both. A gradient
// is a composite row of its own; second derivatives come from differentiating its decomposition.

#include "core/call.h"

namespace brrr {

/// Meta of output k: contiguous memory of its own, where the first input is unless it is said.
inline void set_meta(OpCall& c, int k, DType dtype, const IntList& sizes, Device device) {
  OutMeta& m = c.meta[k];
  m.dtype = dtype;
  m.device = device;
  m.sizes = sizes;
}
inline void set_meta(OpCall& c, int k, DType dtype, const IntList& sizes) {
  set_meta(c, k, dtype, sizes, c.in[0]->device);
}
/// Of a call without inputs, whose attributes say where.
inline void set_made_meta(OpCall& c, DType dtype, const IntList& sizes) {
  set_meta(c, 0, dtype, sizes, {static_cast<DeviceType>(c.attrs.device), 0});
}

/// A shape rule: one result like the first input, in memory of its own.
inline void same_infer(OpCall& c) { set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list()); }

/// A dim of the tensor, counted from 0.
int dim_arg(const char* op, const Tensor& t, int64_t dim);
/// Throws unless the operand, which is defined, is floating.
void check_floating(const char* op, const TensorImpl& x);
void check_gives_floating(const char* op, DType dtype);
/// Throws unless all inputs live on one device, or on the given one.
void check_devices(const OpCall& c);
void check_devices(const OpCall& c, Device where);
/// x in the dtype it is computed in: 16-bit floats become float32.
Tensor widened(const Tensor& x);

}  // namespace brrr
