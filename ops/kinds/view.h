#pragma once
// The view row: `infer` fills meta with alias 0 and no kernel runs; the gradient is the inverse.

#include "core/call.h"
#include "core/check.h"

namespace brrr {

/// For shape rules: output k starts as the operand's own view of its memory, to be changed.
inline OutMeta& view_meta(OpCall& c, int k = 0) {
  BRRR_CHECK(c.in[0], "{}: the tensor is undefined; assign one first", c.op->name);
  const TensorImpl& t = *c.in[0];
  OutMeta& m = c.meta[k];
  m.dtype = t.dtype;
  m.device = t.device;
  m.alias = 0;
  m.sizes = t.size_list();
  m.strides = t.stride_list();
  m.offset = t.offset;
  return m;
}

/// reshape(), but returns the tensor itself if it has these sizes: while a view exists, writes to
/// the memory that it shows are refused.
inline Tensor in_sizes(const Tensor& t, const IntList& sizes) {
  return t.sizes() == sizes ? t : t.reshape(sizes);
}

/// The spec of a view's row.
constexpr OpSpec view_spec(void (*infer)(OpCall&), void (*vjp)(VjpCall&)) {
  return {.kind = OpKind::View, .infer = infer, .vjp = vjp};
}

}  // namespace brrr
