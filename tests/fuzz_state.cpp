// Actions of a fuzzed step program on lasting state: gradients, updates, handles.
#include "tests/fuzz_steps.h"

namespace brrr::fuzz {

void differentiate(Machine& m, const Ins& i) {
  const Tensor t = m.find(i.a, [](const Tensor& x) { return x.requires_grad() && x.numel() > 0; });
  if (!t.defined()) return;
  const Tensor loss = t.numel() == 1 ? t : i.b % 2 ? t.sum() : (t * t).mean();
  if (i.n % 4) {
    loss.backward({}, i.n % 3 == 0);
  } else {
    const auto& leaves = m.state.leaves;
    GradOptions options{.create_graph = i.c % 2 == 0, .retain_graph = true, .allow_unused = true};
    for (const Tensor& g : grad({loss}, {leaves[i.b % leaves.size()], leaves[0]}, options)) {
      m.push(g);
    }
  }
}

void use_grad(Machine& m, const Ins& i) {
  const Tensor& leaf = m.state.leaves[i.a % m.state.leaves.size()];
  switch (i.n % 4) {
    case 0:
      return leaf.set_grad({});
    case 1:
      return m.push(leaf.grad());
    case 2:
      return leaf.grad().defined() ? m.push(leaf.grad().detach()) : m.push(leaf);
    default:
      for (const Tensor& l : m.state.leaves) l.set_grad({});
  }
}

void optimise(Machine& m, const Ins& i) {
  State& s = m.state;
  if (i.c % 3 == 0) set_control(*s.lr, 0.1 / (1 + m.call));
  NoGradGuard guard;
  for (size_t k = 0; k < s.leaves.size(); ++k) {
    const Tensor &p = s.leaves[k], g = p.grad();
    if (!g.defined()) continue;
    switch (i.n % 5) {
      case 0:
        sgd_step_(p, g, *s.lr, *s.decay);
        break;
      case 1:
        sgd_momentum_step_(p, g, s.momentum[k], *s.lr, 0.9, *s.decay);
        break;
      case 2:
        sgd_nesterov_step_(p, g, s.momentum[k], *s.lr, 0.9, *s.decay);
        break;
      case 3:
        adam_scalars_(s.adam[k], {0.9, 0.99, 1e-8});
        adamw_step_(p, g, s.adam[k], *s.lr, {0.9, 0.99, 1e-8}, *s.decay);
        break;
      default:
        p.sub_(g * 0.1);
    }
  }
}

// Handles that outlive the call, and those of an earlier call.
void keep(Machine& m, const Ins& i) {
  State& s = m.state;
  const Tensor t = m.pick(i.a);
  switch (i.n % 6) {
    case 0:
      s.held[i.b % s.held.size()] = t.detach();
      break;
    case 1:
      s.held[i.b % s.held.size()] = t;
      break;
    case 2:
      s.escaped.push_back(t);
      break;
    case 3:
      for (const Tensor& e : s.escaped) m.push(e);
      if (i.b % 2) s.escaped.clear();
      break;
    case 4:
      s.results.push_back(t);
      break;
    default:
      m.pool[i.b % m.pool.size()] = t;  // Another handle dies.
  }
}

void new_leaf(Machine& m, const Ins& i) {
  const Tensor t = m.floating(i.a).detach();
  m.push((i.n % 2 ? t.clone() : t).set_requires_grad());
}

}  // namespace brrr::fuzz
