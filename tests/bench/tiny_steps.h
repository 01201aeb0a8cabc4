#pragma once

// Steps with next to nothing to compute: what they take is overhead.

#include <brrr/brrr.h>

#include <functional>
#include <memory>
#include <vector>

namespace brrr::bench {

// A chain of n pointwise ops on a tiny tensor: all of its cost is overhead.
inline Tensor tiny_chain(Tensor h, int ops) {
  for (int k = 0; k < ops; k += 2) h = h * 0.5 + 0.25;
  return h;
}

// The same with a gradient: n ops forward, then backward into w.
inline Tensor tiny_chain_with_gradient(const Tensor& x, const Tensor& w, int ops) {
  Tensor h = x;
  for (int k = 0; k < ops; k += 2) h = h * 0.5 + w;
  const Tensor loss = h.sum();
  w.set_grad({});
  loss.backward();
  return loss;
}

inline constexpr int chain_ops = 200;
using ChainFn = std::function<Tensor(const Tensor&)>;

// A recorded, built, perhaps frozen step on a tiny tensor.
struct ChainStep {
  Tensor x = ones({16});
  Step<ChainFn> step;
  ChainStep(ChainFn fn, bool freeze) : step(std::move(fn), StepOptions{}) {
    for (int k = 0; k < 4; ++k) step(x);
    if (freeze) step.freeze();
  }
  void run(std::int64_t n) {
    for (std::int64_t k = 0; k < n; ++k) step(x);
  }
};

inline ChainFn chain_fn(bool gradient) {
  if (!gradient) return [](const Tensor& x) { return tiny_chain(x, chain_ops); };
  const Tensor w = ones({16});
  w.set_requires_grad();
  return [w](const Tensor& x) { return tiny_chain_with_gradient(x, w, chain_ops); };
}

// Six tiny parameters with SGD: as many externals and survivors as the MLP has, next to no kernel
// time. What its kernels take is left in, so that the figure is an upper bound of the host's part.
inline ChainFn tiny_training_fn(int n = 6) {
  std::vector<Tensor> parameters;
  for (int k = 0; k < n; ++k) {
    parameters.push_back(ones({16}).clone());
    parameters.back().set_requires_grad();
  }
  auto opt = std::make_shared<optim::SGD>(parameters, optim::SGDOptions{.lr = 1e-9});
  return [opt](const Tensor& x) {
    Tensor h = x;
    for (const Tensor& p : opt->parameters()) h = h * p;
    const Tensor loss = h.sum();
    opt->zero_grad();
    loss.backward();
    opt->step();
    return loss;
  };
}

}  // namespace brrr::bench
