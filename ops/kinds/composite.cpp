#include "ops/kinds/composite.h"

#include "core/check.h"

namespace brrr {

const Tensor& defined(const char* op, const Tensor& t) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined; assign one first", op);
  return t;
}
int dim_arg(const char* op, const Tensor& t, int64_t dim) {
  return wrap_dim(op, dim, static_cast<int>(defined(op, t).dim()));
}

void check_devices(const OpCall& c) {
  const TensorImpl* first = nullptr;
  for (int i = 0; i < c.n_in; ++i) {
    if (!first) first = c.in[i];
    BRRR_CHECK(!c.in[i] || c.in[i]->device == first->device,
               "{}: operands live on {} and {}; move one with to(device)", c.op->name,
               name(first->device), name(c.in[i]->device));
  }
}

void check_composite(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  BRRR_CHECK(is_floating(x.dtype), "{}: takes floating dtypes, got {}; convert with to(kFloat32)",
             c.op->name, describe(&x));
  check_devices(c);
}

Tensor converted(const Tensor& x, DType t) { return x.dtype() == t ? x : x.to(t); }
Tensor widened(const Tensor& x) { return converted(x, compute_type(x.dtype())); }

}  // namespace brrr
