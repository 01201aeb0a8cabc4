#pragma once
// The experiment of "Making Deep Learning Go Brrrr From First Principles": the same tensor is
// multiplied again and again. In one fused kernel it is read and written once, so more repetitions
// are more arithmetic per byte: free while memory bounds the kernel, paid for once arithmetic does.

#include <brrr/brrr.h>

#include "examples/common/page.h"
#include "tests/bench/measure/machine.h"

namespace examples {

/// Seconds of one call in either mode, medians, and why they cannot be trusted; empty if they can.
struct BothModes {
  double eager = 0, graph = 0;
  std::string complaint = {};
};
/// The results are compared, then the modes timed in turns, so that what disturbs the machine
/// disturbs both. `seconds`: for each of them.
BothModes time_both(const std::function<brrr::Tensor(const brrr::Tensor&)>& f,
                    const brrr::Tensor& x, double seconds);

/// So many multiplications of each element.
struct RoofPoint {
  int64_t repeats;
  double elements;
  double eager, fused;  ///< Seconds of one call, medians.
  double flops() const { return static_cast<double>(repeats) * elements; }
  /// One kernel reads and writes every element once; eager mode's kernels do so one after the
  /// other.
  double bytes() const { return 2 * sizeof(float) * elements; }
  double intensity() const { return flops() / bytes(); }
};

struct Knee {
  double at = 0;      ///< Repetitions: where what memory takes and what arithmetic takes are equal.
  double uneven = 0;  ///< By how much of it the time differs, at most, up to half of `at`.
};

struct Roofline {
  /// Measures `repeats` on a tensor. `seconds`: for each of them and each mode.
  Roofline(const brrr::bench::Limits& limits, const brrr::Tensor& x,
           const std::vector<int64_t>& repeats, double seconds);
  /// Multiplications for each element that memory leaves time for.
  double free_repeats() const { return gflops / gbs * 2 * sizeof(float); }
  /// What the limits leave at least of such a call, in seconds.
  double bound(const RoofPoint& p) const {
    return 1e-9 * std::max(p.bytes() / gbs, p.flops() / gflops);
  }
  /// As measured: of points from far below the knee to far above, the level of the first half of
  /// those that do not grow, over the slope of the last two.
  Knee knee() const;
  std::string seen() const;  ///< A paragraph with its figures,
  std::string note() const;  ///< and one with the limits.
  Sheet sheet() const;
  /// The time of a call, FLOP/s and bytes a second over FLOP per byte.
  std::vector<Picture> pictures() const;

  std::vector<RoofPoint> points;
  double gbs;             ///< The tensor copied, in turns with the points.
  double gflops;          ///< Multiplications; a fused multiply-add counts as two elsewhere.
  std::string complaint;  ///< Why it cannot be trusted; empty if it can.
};

}  // namespace examples
