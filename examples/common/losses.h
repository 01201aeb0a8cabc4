#pragma once
// What training programs keep of a run while it goes on.

#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "examples/common/options.h"

namespace examples {

/// A NaN without its sign, which the modes need not agree on.
inline double plain(double v) {
  return std::isnan(v) ? std::numeric_limits<double>::quiet_NaN() : v;
}

/// Losses as they come; they are read only when a line is printed, so that no step waits.
class LossLog {
 public:
  explicit LossLog(std::string path, int64_t first) : path_(std::move(path)), next_(first + 1) {}
  void add(const brrr::Tensor& loss) { pending_.push_back(loss); }
  double read() {
    for (const brrr::Tensor& t : pending_) {
      last_ = plain(static_cast<double>(t.item<float>()));
      if (!path_.empty()) text_ += fmt::format("{},{:.9g}\n", next_, last_);
      ++next_;
    }
    pending_.clear();
    return last_;
  }
  void write() {
    read();
    if (!path_.empty()) write_file(path_, "step,loss\n" + text_);
  }

 private:
  std::string path_, text_;
  std::vector<brrr::Tensor> pending_;
  double last_ = 0;
  int64_t next_;
};

/// Seconds that a step has taken once, to record and build its kernels.
inline double once_seconds(const brrr::StepStats& s) {
  return s.record_seconds + s.fuse_seconds + s.plan_seconds + s.build_seconds + s.capture_seconds;
}

/// Steps per second without the time spent on tests, checkpoints and compiling.
struct Pace {
  double seconds = 0;
  int64_t steps = 0;
  double rate() const { return seconds > 0 ? static_cast<double>(steps) / seconds : 0; }
  Pace without(double once) const { return {seconds - std::min(once, seconds), steps}; }
};

/// Of an option's eager, graph or auto.
inline brrr::Mode mode_of(const std::string& name) {
  return name == "eager"   ? brrr::Mode::Eager
         : name == "graph" ? brrr::Mode::Graph
                           : brrr::Mode::Auto;
}

}  // namespace examples
