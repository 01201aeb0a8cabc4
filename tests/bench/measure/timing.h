#pragma once

// The clock, and statistics of samples. C++17, for the peers.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
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

// Needs at least one sample.
inline Quantiles quantiles(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return {(samples[(n - 1) / 2] + samples[n / 2]) / 2, samples[std::min(n - 1, n * 95 / 100)], n};
}

// 0 if there are no samples.
inline double median(std::vector<double> samples) {
  return samples.empty() ? 0 : quantiles(std::move(samples)).median;
}

// Median seconds of each call, interleaved, so that disturbances of the machine affect all.
inline std::vector<double> times_in_turns(const std::vector<std::function<void()>>& calls,
                                          double seconds) {
  constexpr std::size_t least = 3, most = 1000;
  std::vector<std::vector<double>> samples(calls.size());
  for (const auto& call : calls) call();
  double spent = 0;
  const double enough = seconds * static_cast<double>(calls.size());
  while (samples[0].size() < least || (spent < enough && samples[0].size() < most)) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const auto begin = Clock::now();
      calls[i]();
      samples[i].push_back(seconds_since(begin));
      spent += samples[i].back();
    }
  }
  std::vector<double> medians;
  for (auto& s : samples) medians.push_back(median(std::move(s)));
  return medians;
}

}  // namespace brrr::bench
