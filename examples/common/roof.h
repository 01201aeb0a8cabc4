#pragma once
// What the programs share that multiply a tensor more and more often in one kernel, to find where
// its time begins to grow with its arithmetic.

#include <brrr/brrr.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/cpu/stream.h"
#include "tests/bench/measure/machine.h"
#include "tests/bench/measure/timing.h"

namespace examples {

/// By a factor near 1, so that many of them leave numbers of ordinary size.
inline brrr::Tensor multiplied(const brrr::Tensor& x, int64_t times) {
  brrr::Tensor y = x * 0.999;
  for (int64_t i = 1; i < times; ++i) y = y * 0.999;
  return y;
}

/// What copying the tensor reads and writes a second, in GB. On the CPU it is measured now, for
/// memory is shared with other machines: what is to be compared with it runs directly before.
inline double copy_gbs(const brrr::bench::Limits& limits, const brrr::Tensor& x) {
  const auto bytes = static_cast<size_t>(x.numel()) * sizeof(float);
  if (limits.on_gpu()) return limits.gb_per_second(2.0 * static_cast<double>(bytes));
  return brrr::cpu::stream_like(1, bytes, limits.threads > 1).gb_per_second;
}

struct Knee {
  double at = 0;      ///< Repetitions: where what memory takes and what arithmetic takes are equal.
  double uneven = 0;  ///< By how much of it the time differs, at most, up to half of `at`.
};
/// Of seconds by repetitions, rising, from far below the knee to far above: the level of the first
/// half of the points that do not grow, over the slope of the last two.
inline Knee find_knee(const std::vector<std::pair<double, double>>& points) {
  if (points.size() < 4) return {};
  const auto &last = points.back(), &before = points[points.size() - 2];
  const double slope = (last.second - before.second) / (last.first - before.first);
  std::vector<double> level;
  for (const auto& [repeats, seconds] : points) {
    if (2 * repeats * slope <= points[0].second) level.push_back(seconds);
  }
  if (level.empty() || slope <= 0) return {};
  const auto [lo, hi] = std::minmax_element(level.begin(), level.end());
  const double uneven = *hi / *lo - 1;
  return {brrr::bench::median(level) / slope, uneven};
}

}  // namespace examples
