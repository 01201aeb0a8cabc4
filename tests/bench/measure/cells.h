#pragma once
// The same training step in every way, measured side by side.

#include "tests/bench/measure/trainer.h"

namespace brrr::bench {

using MakeTrainer = std::function<std::unique_ptr<Trainer>(Way)>;

struct Cell {
  /// Microseconds a step.
  Quantiles queued;   ///< Back to back, the last one waited for: a sample a series.
  Quantiles latency;  ///< Every step waited for: one sample a step.
  StepStats stats;
  /// Whether every step ran in the mode itself: only then are these the mode's figures.
  bool counts() const { return stats.fallbacks == 0; }
};
/// All modes at one size.
struct Cells {
  std::vector<Cell> cells;  ///< As kWays.
  const Cell& of(Way way) const { return cells[static_cast<size_t>(way)]; }
  int64_t steps = 0;  ///< That each of them made.
  /// Of the time, that the thread had a core: less is a busy machine, or one that waits for a GPU.
  double share = 1;
  std::string complaint;  ///< Why the figures cannot be trusted; empty if they can.
};
/// Gives every mode the same number of steps, in turns, such that eager's take about `seconds`.
/// Then compares the final parameters bit by bit and counts fallbacks; those of the mode without
/// fusion are no complaint.
Cells measure(const MakeTrainer& make, double seconds);

/// What the first compiled step costs, in milliseconds.
struct OneTime {
  double record = 0, fuse = 0, plan = 0, build = 0, capture = 0;
  double first_calls = 0;  ///< Wall time of the two calls that record and build.
  bool cached = false;     ///< The kernels came from the disk.
  double total() const { return record + fuse + plan + build + capture; }
};
/// From the kernel cache as it is.
OneTime measure_one_time(const MakeTrainer& make);

}  // namespace brrr::bench
