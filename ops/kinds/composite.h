#pragma once
// The composite row: an op defined by its decomposition into other ops, with a fast kernel as well.
//
// The kernel does the decomposition's arithmetic in the same order (see row_kernel.h), and tests
// hold the two equal to the last bit in float32; a row whose kernel uses another order states its
// tolerance. Both widen 16-bit floats first and round once, at the end. A gradient is a composite
// row of its own; second derivatives come from differentiating its decomposition.

#include "core/call.h"

namespace brrr {

/// Meta of output k: contiguous, memory of its own, on the first input's device unless given.
inline void set_meta(OpCall& c, int k, DType dtype, const IntList& sizes, Device device) {
  OutMeta& m = c.meta[k];
  m.dtype = dtype;
  m.device = device;
  m.sizes = sizes;
}
inline void set_meta(OpCall& c, int k, DType dtype, const IntList& sizes) {
  set_meta(c, k, dtype, sizes, c.in[0]->device);
}
/// For a call without inputs, whose attributes name the device.
inline void set_made_meta(OpCall& c, DType dtype, const IntList& sizes) {
  set_meta(c, 0, dtype, sizes, {static_cast<DeviceType>(c.attrs.device), 0});
}

/// A shape rule: one result with the first input's shape and dtype, in memory of its own.
inline void same_infer(OpCall& c) { set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list()); }

/// `dim` counted from the front: negative dims are wrapped.
int dim_arg(const char* op, const Tensor& t, int64_t dim);
/// Throws unless the operand, which must be defined, is floating.
void check_floating(const char* op, const TensorImpl& x);
void check_gives_floating(const char* op, DType dtype);
/// Throws unless all inputs live on one device, or on the given one.
void check_devices(const OpCall& c);
void check_devices(const OpCall& c, Device where);
/// x in its compute type: 16-bit floats become float32.
Tensor widened(const Tensor& x);

}  // namespace brrr
