#pragma once
// The multilayer perceptron.

#include <deque>

#include "models/layers.h"

namespace brrr::models {

struct MLPOptions {
  std::vector<int64_t> sizes;       ///< Input, hidden layers, output: {784, 256, 10}.
  std::string activation = "relu";  ///< relu, gelu, tanh, silu or sigmoid.
  double dropout = 0.0;             ///< After each activation.
};

/// Linear layers "fc1", "fc2", ... with the activation between them: [.., in] -> [.., out].
class MLP : public Module {
 public:
  explicit MLP(const MLPOptions& options);
  Tensor forward(const Tensor& x) override;

 private:
  std::deque<Linear> layers_;  // A deque: modules do not move.
  Tensor (*activation_)(const Tensor&);
  Dropout dropout_;
};

}  // namespace brrr::models
