#pragma once

// What a parallel region costs.

#include <atomic>
#include <vector>

#include "core/backend.h"
#include "tests/bench/measure/timing.h"

namespace brrr::bench {

// Time of an empty parallel region on two threads, in nanoseconds; 0 with one thread.
inline double spin_round_trip_ns() {
  std::atomic<int> ranges{0};
  const auto region = [&](std::int64_t, std::int64_t) { ranges.fetch_add(1); };
  parallel_for(2, 1, region);
  if (ranges < 2) return 0;  // One thread took all of it.
  constexpr int rounds = 41, per_round = 200;
  std::vector<double> ns;
  for (int r = 0; r < rounds; ++r) {
    const auto begin = Clock::now();
    for (int i = 0; i < per_round; ++i) parallel_for(2, 1, region);
    ns.push_back(1e9 * seconds_since(begin) / per_round);
  }
  return median(std::move(ns));
}

}  // namespace brrr::bench
