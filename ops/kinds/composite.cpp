#include "ops/kinds/composite.h"

#include "core/check.h"

namespace brrr {

int dim_arg(const char* op, const Tensor& t, int64_t dim) {
  return wrap_dim(op, dim, static_cast<int>(defined(op, t).dim()));
}

void check_floating(const char* op, const TensorImpl& x) {
  BRRR_CHECK(is_floating(x.dtype), "{}: takes floating dtypes, got {}; convert with to(kFloat32)",
             op, describe(&x));
}
void check_gives_floating(const char* op, DType dtype) {
  BRRR_CHECK(is_floating(dtype), "{}: gives floating dtypes, not {}; convert with to()", op,
             name(dtype));
}

void check_devices(const OpCall& c, Device where) {
  for (int i = 0; i < c.n_in; ++i) {
    BRRR_CHECK(!c.in[i] || c.in[i]->device == where,
               "{}: operands live on {} and {}; move one with to(device)", c.op->name, name(where),
               name(c.in[i]->device));
  }
}
void check_devices(const OpCall& c) {
  TensorImpl* const* first = c.in;
  while (!*first) ++first;
  check_devices(c, (*first)->device);
}

Tensor widened(const Tensor& x) { return x.to(compute_type(x.dtype())); }

}  // namespace brrr
