#pragma once
// The experiment of "Making Deep Learning Go Brrrr From First Principles": multiply the same tensor
// repeatedly. One fused kernel reads and writes it once, so that more repetitions mean more FLOPs
// per byte: free while the kernel is memory-bound, and proportional once it is compute-bound.

#include <brrr/brrr.h>

#include "examples/common/page.h"
#include "tests/bench/measure/machine.h"

namespace examples {

/// Median seconds per call in each mode, and why they cannot be trusted; empty if they can.
struct BothModes {
  double eager = 0, graph = 0;
  std::string complaint = {};
};
/// Compares the results, then times the modes alternately, so that disturbances affect both.
/// `seconds`: for each mode.
BothModes time_both(const std::function<brrr::Tensor(const brrr::Tensor&)>& f,
                    const brrr::Tensor& x, double seconds);

/// The measurement for one number of multiplications per element.
struct RoofPoint {
  int64_t repeats;
  double elements;
  double eager, fused;  ///< Median seconds per call.
  double flops() const { return static_cast<double>(repeats) * elements; }
  /// The fused kernel reads and writes every element once; so does each of eager mode's kernels.
  double bytes() const { return 2 * sizeof(float) * elements; }
  double intensity() const { return flops() / bytes(); }
};

struct Knee {
  double at = 0;         ///< The repetitions at which memory time and compute time are equal.
  double variation = 0;  ///< Largest relative variation of the time up to half of `at`.
};

struct Roofline {
  /// Measures each of `repeats` on x. `seconds`: for each of them and each mode.
  Roofline(const brrr::bench::Limits& limits, const brrr::Tensor& x,
           const std::vector<int64_t>& repeats, double seconds);
  /// Multiplications per element that fit into the memory time.
  double free_repeats() const { return gflops / gbs * 2 * sizeof(float); }
  /// The lower bound of a call's seconds by the machine's limits.
  double bound(const RoofPoint& p) const {
    return 1e-9 * std::max(p.bytes() / gbs, p.flops() / gflops);
  }
  /// The measured knee, from points far below it to far above: the median time of the points up to
  /// half of it, divided by the slope of the last two points.
  Knee knee() const;
  std::string findings() const;  ///< A paragraph with the findings,
  std::string note() const;      ///< and one with the limits.
  Sheet sheet() const;
  /// The time of a call, FLOP/s and bytes per second over FLOP per byte.
  std::vector<Picture> pictures() const;

  std::vector<RoofPoint> points;
  double gbs;             ///< Bandwidth of copying the tensor, measured between the points.
  double gflops;          ///< Peak of multiplications: half of that of fused multiply-adds.
  std::string complaint;  ///< Why the figures cannot be trusted; empty if they can.
};

}  // namespace examples
