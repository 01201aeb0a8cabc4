#pragma once
// The training tasks of `overhead` and `lab`.

#include "tests/bench/measure/trainer.h"

namespace examples {

using namespace brrr::bench;

struct Task {
  std::string name;                         ///< Includes the model's sizes.
  std::string one_kernel;                   ///< Operations that are one kernel each in eager mode.
  std::vector<int64_t> sizes;               ///< Batch sizes to measure by default.
  std::function<Batches(int64_t)> batches;  ///< Makes batches of a given size.
  std::function<Learner()> learner;
};

/// A task's batches, each from a call of x() and one of y().
Batches make_batches(const std::function<brrr::Tensor()>& x,
                     const std::function<brrr::Tensor()>& y);

struct OwnOptions {
  int64_t width = 64;
  int64_t scales = 0;  ///< Length of a vector that is also scaled and shifted; 0: none.
};
/// See own.cpp: put the model that you train there, and `overhead --own` measures it.
Task own_task(const OwnOptions& options = {});

/// "MLP" of "MLP 784-256-128-10".
std::string short_name(const std::string& task);

/// "mlp", "gpt", both of which are "all", or "own".
std::vector<Task> tasks(const std::string& model);

/// A training run on the batches' device, always from the same weights.
std::unique_ptr<Trainer> make_trainer(const Task& task, const Batches& batches,
                                      const std::string& optimizer, Way way);

/// The breakdown of a training step.
struct Anatomy {
  brrr::TimeSplit split;  ///< Of a step's time as measured without the profile.
  int64_t steps = 0;      ///< Profiled steps.
  std::vector<brrr::ProfileRow> kinds, kernels;  ///< By kind; the ten kernels that took longest.
  double profiled_us = 0, kernels_us = 0;  ///< The profile's total time, and its time in kernels.
  /// The profile's time of a step, kernels and gaps, over the time of a step without the profile.
  double profile_ratio = 0;

  double flops() const { return sum(&brrr::ProfileRow::flops); }  ///< Per step.
  double bytes() const { return sum(&brrr::ProfileRow::bytes); }
  /// The part of the split's overhead between kernels, by the profile's proportions.
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
/// Breaks down a step that takes `us`; runs 2 * steps steps, half of them without the profile.
Anatomy dissect(Trainer& trainer, double us, int64_t steps);

}  // namespace examples
