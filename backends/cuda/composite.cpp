#include "backends/cuda/composite.h"

#include <vector>

#include "core/context.h"
#include "ops/kinds/pointwise.h"

namespace brrr::cuda {

void run_decomposition(OpCall& c) {
  const PlainScope plain;  // Whoever runs the composite has recorded it already.
  std::vector<Tensor> in;
  for (int i = 0; i < c.n_in; ++i) {
    in.push_back(c.in[i] ? Tensor(Ref<TensorImpl>::share(c.in[i])) : Tensor());
  }
  OpCall inner(*c.op, c.in, c.n_in, c.n_out);
  inner.attrs = c.attrs;
  c.op->decompose(inner, in.data());
  for (int k = 0; k < c.n_out - c.op->n_scratch; ++k) {
    // A copy of the results, not the results: they may be views, or the inputs themselves.
    copy_now(*c.out[k].impl(), *inner.out[k].impl());
  }
}

}  // namespace brrr::cuda
