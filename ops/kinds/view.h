#pragma once
// The view row: a metadata map and the gradient that undoes it; what files of such rows share.

#include "core/check.h"
#include "core/context.h"

namespace brrr {

/// A view row. `infer` fills meta[0] with alias 0; nothing runs.
class ViewOp : public OpDef {
 public:
  ViewOp(const char* n, const char* d, void (*shape)(OpCall&), void (*gradient)(VjpCall&)) {
    name = n;
    doc = d;
    kind = OpKind::View;
    infer = shape;
    vjp = gradient;
    grad_aliases = 1;
    register_row();
  }
};

/// Calls a view row on one tensor; `words` are its attributes.
template <class... Words> Tensor view_call(const OpDef& op, const Tensor& t, Words... words) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined", op.name);
  TensorImpl* in[] = {t.impl()};
  OpCall c(op, in, 1);
  (c.attrs.push(static_cast<int64_t>(words)), ...);
  dispatch(c);
  return std::move(c.out[0]);
}
inline Tensor view_call(const OpDef& op, const Tensor& t, const IntList& words) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined", op.name);
  TensorImpl* in[] = {t.impl()};
  OpCall c(op, in, 1);
  for (int64_t w : words) c.attrs.push(w);
  dispatch(c);
  return std::move(c.out[0]);
}

/// For a shape rule: the result as the same view of the operand's memory, to be changed.
inline OutMeta& view_meta(OpCall& c) {
  const TensorImpl& t = *c.in[0];
  OutMeta& m = c.meta[0];
  m.dtype = t.dtype;
  m.device = t.device;
  m.alias = 0;
  m.sizes = t.size_list();
  m.strides = t.stride_list();
  m.offset = t.offset;
  return m;
}

/// The attributes from `begin` on as a list of sizes or dims.
inline IntList attr_words(const Attrs& a, int begin = 0) {
  return {a.v + begin, static_cast<size_t>(a.n - begin)};
}

}  // namespace brrr
