#pragma once
// The same training step in several modes, measured side by side.

#include <brrr/brrr.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/trace.h"

namespace examples {

/// A model in training: makes the same steps from the same start, whatever the mode.
class Trainer {
 public:
  virtual ~Trainer() = default;
  /// Step number `i` of the run; returns the loss.
  virtual brrr::Tensor step(int64_t i) = 0;
  virtual void freeze() = 0;
  virtual brrr::StepStats stats() const = 0;
  virtual std::vector<brrr::Tensor> parameters() const = 0;
  /// While set, every step writes its phases there.
  Trace* trace = nullptr;
};
using MakeTrainer = std::function<std::unique_ptr<Trainer>(const brrr::StepOptions&)>;

/// One way to run a step.
struct Mode {
  const char* name;
  brrr::StepOptions options;
  bool frozen;
};
/// Eager, graph without fusion, graph with fusion, frozen graph: in this order.
const std::vector<Mode>& modes();

/// Microseconds a step.
struct Samples {
  double median = 0, p95 = 0;
  size_t n = 0;
};
struct Cell {
  Samples queued;   ///< Steps back to back, the last one waited for: one sample a series.
  Samples latency;  ///< Every step waited for: one sample a step.
  brrr::StepStats stats;
  /// Whether every step ran in the mode itself: only then are these the mode's figures.
  bool counts() const { return stats.fallbacks == 0; }
};
/// All modes at one size.
struct Cells {
  std::vector<Cell> cells;  ///< As modes().
  int64_t steps = 0;        ///< That each of them made.
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

/// A kernel cache that is empty at first and that nobody else uses, until the end of its life.
class PrivateCache {
 public:
  PrivateCache();
  ~PrivateCache();
  PrivateCache(const PrivateCache&) = delete;
  PrivateCache& operator=(const PrivateCache&) = delete;

 private:
  std::string folder_;
  std::optional<std::string> before_;
};

}  // namespace examples
