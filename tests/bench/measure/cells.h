#pragma once
// The same training step in every way, measured interleaved.

#include "tests/bench/measure/trainer.h"

namespace brrr::bench {

using MakeTrainer = std::function<std::unique_ptr<Trainer>(Way)>;

struct Cell {
  /// Microseconds a step.
  Quantiles queued;   ///< Back to back, waiting only for the last: one sample a series.
  Quantiles latency;  ///< Waiting for every step: one sample a step.
  StepStats stats;
  /// Whether every step ran in the mode itself; otherwise these are not the mode's figures.
  bool counts() const { return stats.fallbacks == 0; }
};
struct Cells {
  std::vector<Cell> cells;  ///< In the order of kWays.
  const Cell& of(Way way) const { return cells[static_cast<size_t>(way)]; }
  int64_t steps = 0;  ///< Made in each way.
  /// CPU time of the thread over wall time: less means a busy machine, or waiting for a GPU.
  double share = 1;
  std::string complaint;  ///< Why the figures cannot be trusted; empty if they can.
};
/// Runs the same number of steps in every mode, interleaved, such that eager's take about
/// `seconds`. Then compares the final parameters bit by bit and counts fallbacks; fallbacks of the
/// mode without fusion are no complaint.
Cells measure(const MakeTrainer& make, double seconds);

/// One-time costs up to the first compiled step, in milliseconds.
struct OneTime {
  double record = 0, fuse = 0, plan = 0, build = 0, capture = 0;
  double first_calls = 0;  ///< Wall time of the two calls that record and build.
  bool cached = false;     ///< The kernels came from the disk cache.
  double total() const { return record + fuse + plan + build + capture; }
};
/// Uses the kernel cache as it is.
OneTime measure_one_time(const MakeTrainer& make);

}  // namespace brrr::bench
