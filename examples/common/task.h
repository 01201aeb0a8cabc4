#pragma once
// What `overhead` and `lab` train.

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

/// Of a task: each x() and y() is one.
Batches make_batches(const std::function<brrr::Tensor()>& x,
                     const std::function<brrr::Tensor()>& y);

struct OwnOptions {
  int64_t width = 64;
  int64_t scales = 0;  ///< Numbers of a vector that is scaled and shifted, too; 0: none is.
};
/// See own.cpp: change it to what you train, then `overhead --own` takes it apart.
Task own_task(const OwnOptions& options = {});

/// "MLP" of "MLP 784-256-128-10".
std::string short_name(const std::string& task);

/// "mlp", "gpt", both of which are "all", or "own".
std::vector<Task> tasks(const std::string& model);

/// A training run where the batches are, from the same weights every time and everywhere.
std::unique_ptr<Trainer> make_trainer(const Task& task, const Batches& batches,
                                      const std::string& optimizer, Way way);

/// What a training step is made of.
struct Anatomy {
  brrr::TimeSplit split;  ///< Of a step's time as it was measured without the profile.
  int64_t steps = 0;      ///< That the profile saw:
  std::vector<brrr::ProfileRow> kinds, kernels;  ///< Of these the ten longest.
  double profiled_us = 0, kernels_us = 0;  ///< All of its time, and what was spent in kernels.
  /// A profile's parts, kernels and what lies between, of a step over the time of one without it.
  double of_the_clock = 0;

  double flops() const { return sum(&brrr::ProfileRow::flops); }  ///< Of a step.
  double bytes() const { return sum(&brrr::ProfileRow::bytes); }
  /// Of the split's overhead what does not lie in kernels, by the profile's own shares.
  double between_us() const {
    double known = 0;
    for (const auto& row : kinds) known += row.time.compute_us + row.time.memory_us;
    const double overhead = profiled_us - known;
    return overhead > 0 ? split.overhead_us() * (profiled_us - kernels_us) / overhead : 0;
  }

 private:
  double sum(double brrr::ProfileRow::*part) const {
    double all = 0;
    for (const auto& row : kinds) all += row.*part;
    return all / static_cast<double>(steps);
  }
};
/// Of a step that takes `us`; makes twice as many steps, half of them without the profile.
Anatomy dissect(Trainer& trainer, double us, int64_t steps);

}  // namespace examples
