#pragma once
// What `overhead` trains.

#include <brrr/brrr.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "examples/common/cost.h"

namespace examples {

inline constexpr size_t kBatches = 16;

/// Inputs that rotate, so that no batch stays in the cache for the next step.
struct Batches {
  std::vector<brrr::Tensor> x, y;
  Batches to(brrr::Device device) const;
};

/// A model and the loss that a step lowers.
class Learner {
 public:
  virtual ~Learner() = default;
  virtual brrr::Tensor loss(const brrr::Tensor& x, const brrr::Tensor& y) = 0;
  virtual brrr::models::Module& model() = 0;
};

struct Task {
  std::string name;                         ///< With the model's sizes.
  std::string one_kernel;                   ///< What its eager step does in one kernel each.
  std::vector<int64_t> sizes;               ///< Batch sizes to measure by default.
  std::function<Batches(int64_t)> batches;  ///< Of a batch size.
  std::function<std::unique_ptr<Learner>()> learner;
  /// Of a batch size, and an optimiser's name.
  std::function<std::vector<OpCost>(int64_t, const std::string&)> cost;
  std::function<double(int64_t, const std::string&)> working_set;
};

/// "mlp", "gpt" or "all".
std::vector<Task> tasks(const std::string& model);

}  // namespace examples
