#pragma once

// What the libtorch peers share.

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

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;
  if (name == "sgd") return std::make_unique<SGD>(std::move(parameters), SGDOptions(sgd_lr));
  return std::make_unique<AdamW>(std::move(parameters),
                                 AdamWOptions(adamw_lr).weight_decay(adamw_weight_decay));
}

}  // namespace brrr::bench
