#include "ops/kinds/composite.h"

#include "core/check.h"

namespace brrr {

void check_composite(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  BRRR_CHECK(is_floating(x.dtype), "{}: takes floating dtypes, got {}; convert with to(kFloat32)",
             c.op->name, describe(&x));
  for (int i = 1; i < c.n_in; ++i) {
    BRRR_CHECK(!c.in[i] || c.in[i]->device == x.device,
               "{}: operands live on {} and {}; move one with to(device)", c.op->name,
               name(x.device), name(c.in[i]->device));
  }
}

Tensor converted(const Tensor& x, DType t) {
  return x.dtype() == t ? x : x.to(t);
}
Tensor widened(const Tensor& x) {
  return converted(x, compute_type(x.dtype()));
}

}  // namespace brrr
