#pragma once

// Shared by the libtorch peers.

#include <dlfcn.h>
#include <torch/torch.h>

#include <memory>

#include "tests/bench/peer.h"

namespace brrr::bench {

// The core OpenBLAS chose, if OpenBLAS is the BLAS that libtorch found.
inline const char* openblas_core() {
  using GetName = char* (*)();
  const auto get_name = reinterpret_cast<GetName>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  return get_name != nullptr ? get_name() : "unknown";
}

// Since 2.4 libtorch has AdamW as one kernel over all parameters, on the CPU too: the one that
// Python's AdamW(fused=True) calls. torch::optim::AdamW has no such setting and calls some ten
// kernels for each parameter.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
class BestAdamW : public torch::optim::AdamW {
 public:
  BestAdamW(const std::vector<torch::Tensor>& parameters, const torch::optim::AdamWOptions& options)
      : AdamW(parameters, options), parameters_(parameters), options_(options) {
    for (const auto& p : parameters) {
      averages_.push_back(torch::zeros_like(p));
      squares_.push_back(torch::zeros_like(p));
      steps_.push_back(torch::zeros({}));
    }
  }
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> grads;
    for (const auto& p : parameters_) grads.push_back(p.grad());
    torch::_foreach_add_(steps_, 1);
    const auto [beta1, beta2] = options_.betas();
    torch::_fused_adamw_(parameters_, grads, averages_, squares_, {}, steps_, options_.lr(), beta1,
                         beta2, options_.weight_decay(), options_.eps(), /*amsgrad=*/false,
                         /*maximize=*/false);
    return {};
  }

 private:
  std::vector<torch::Tensor> parameters_, averages_, squares_, steps_;
  torch::optim::AdamWOptions options_;
};
#else
using BestAdamW = torch::optim::AdamW;
#endif

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<torch::Tensor>& parameters) {
  using namespace torch::optim;
  if (name == "sgd") return std::make_unique<SGD>(parameters, SGDOptions(sgd_lr));
  return std::make_unique<BestAdamW>(parameters,
                                     AdamWOptions(adamw_lr).weight_decay(adamw_weight_decay));
}

// Drops gradients, so that backward does not accumulate. Optimizer::zero_grad() does so since 2.0;
// before, it filled them with zeros, to which backward had to add.
inline void drop_gradients(torch::optim::Optimizer& optimizer) {
  for (auto& p : optimizer.param_groups()[0].params()) p.mutable_grad().reset();
}

}  // namespace brrr::bench
