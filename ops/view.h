#pragma once
// The view row: a metadata map and the gradient that undoes it.

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

}  // namespace brrr
