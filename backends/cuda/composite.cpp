#include "backends/cuda/composite.h"

#include <vector>

#include "core/context.h"
#include "ops/kinds/pointwise.h"

namespace brrr::cuda {

namespace {

// The ops inside run now and leave no trace: whoever runs the composite has recorded it already.
class Plain {
 public:
  Plain() : before_(context) {
    context.recorder = nullptr;
    context.observer = nullptr;
    context.grad_enabled = false;
    context.autocast = kFloat32;
  }
  ~Plain() {
    const uint64_t sequence = context.sequence;
    context = before_;
    context.sequence = sequence;
  }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

 private:
  Context before_;
};

}  // namespace

void run_decomposition(OpCall& c) {
  const Plain plain;
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
