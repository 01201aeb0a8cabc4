#pragma once
// What `overhead` trains.

#include "tests/bench/measure/trainer.h"

namespace examples {

using namespace brrr::bench;

struct Task {
  std::string name;                         ///< With the model's sizes.
  std::string one_kernel;                   ///< What its eager step does in one kernel each.
  std::vector<int64_t> sizes;               ///< Batch sizes to measure by default.
  std::function<Batches(int64_t)> batches;  ///< Of a batch size.
  std::function<Learner()> learner;
};

/// "mlp", "gpt" or "all".
std::vector<Task> tasks(const std::string& model);

}  // namespace examples
