#include "models/mlp.h"

#include "core/check.h"
#include "ops/pointwise_ops.h"

namespace brrr::models {

namespace {

using Activation = Tensor (*)(const Tensor&);
constexpr std::pair<const char*, Activation> kActivations[] = {
    {"relu", relu},       {"gelu", [](const Tensor& x) { return gelu(x); }},
    {"tanh", tanh},       {"silu", silu},
    {"sigmoid", sigmoid},
};

Activation find_activation(const std::string& name) {
  std::string known;
  for (const auto& [known_name, activation] : kActivations) {
    if (name == known_name) return activation;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", known_name);
  }
  fail("MLP: unknown activation \"{}\"; known are {}", name, known);
}

}  // namespace

MLP::MLP(const MLPOptions& o) : activation_(find_activation(o.activation)), dropout_(o.dropout) {
  BRRR_CHECK(o.sizes.size() >= 2, "MLP: sizes needs an input and an output size, got {} entries",
             o.sizes.size());
  for (size_t i = 1; i < o.sizes.size(); ++i) {
    register_module(fmt::format("fc{}", i), layers_.emplace_back(o.sizes[i - 1], o.sizes[i]));
  }
  register_module("dropout", dropout_);
}

Tensor MLP::forward(const Tensor& x) {
  Tensor h = x;
  for (size_t i = 0; i < layers_.size(); ++i) {
    h = layers_[i](h);
    if (i + 1 == layers_.size()) break;
    h = activation_(h);
    if (dropout_.p() > 0) h = dropout_(h);
  }
  return h;
}

}  // namespace brrr::models
