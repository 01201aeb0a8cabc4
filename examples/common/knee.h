#pragma once
// Where a kernel's time begins to grow with its arithmetic.

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/bench/measure/timing.h"

namespace examples {

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
