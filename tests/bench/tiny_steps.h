#pragma once

// Steps with next to nothing to compute, so that they measure overhead.

#include <brrr/brrr.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/bench/measure/trainer.h"

namespace brrr::bench {

inline constexpr int chain_ops = 200;
using ChainFn = std::function<Tensor(const Tensor&)>;

// A step whose only argument is x; in a graph mode it is recorded, built and perhaps frozen.
struct ChainStep {
  Tensor x;
  Step<ChainFn> step;
  ChainStep(ChainFn fn, Way way, Tensor on = ones({16}))
      : x(std::move(on)), step(std::move(fn), options_of(way)) {
    run(4);
    if (way == Way::Frozen) step.freeze();
  }
  void run(std::int64_t n) {
    for (std::int64_t k = 0; k < n; ++k) step(x);
  }
};

// A chain of pointwise ops on a tiny tensor, with a gradient then backward into w: all of its cost
// is overhead.
inline ChainFn chain_fn(bool gradient) {
  if (!gradient) {
    return [](Tensor h) {
      for (int k = 0; k < chain_ops; k += 2) h = h * 0.5 + 0.25;
      return h;
    };
  }
  return [w = ones({16}).set_requires_grad()](Tensor h) {
    for (int k = 0; k < chain_ops; k += 2) h = h * 0.5 + w;
    const Tensor loss = h.sum();
    w.set_grad({});
    loss.backward();
    return loss;
  };
}

// Six tiny parameters with SGD: as many externals and survivors as the MLP has, next to no kernel
// time. Kernel time is included, so the figure is an upper bound of the host's part.
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
