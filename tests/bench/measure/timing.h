#pragma once

// What everybody who measures needs: the clock, and what counts of many samples. C++17, for the
// peers.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace brrr::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Quantiles {
  double median = 0, p95 = 0;
  std::size_t n = 0;
};

// Of at least one sample.
inline Quantiles quantiles(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return {(samples[(n - 1) / 2] + samples[n / 2]) / 2, samples[std::min(n - 1, n * 95 / 100)], n};
}

// 0 of none.
inline double median(std::vector<double> samples) {
  return samples.empty() ? 0 : quantiles(std::move(samples)).median;
}

}  // namespace brrr::bench
