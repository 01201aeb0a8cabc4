#include "examples/common/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "core/backend.h"

namespace examples {

double spin_round_trip_ns() {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> ranges{0};
  const auto region = [&](int64_t, int64_t) { ranges.fetch_add(1, std::memory_order_relaxed); };
  brrr::parallel_for(2, 1, region);
  if (ranges < 2) return 0;  // One thread took all of it.
  constexpr int per_sample = 200;
  std::vector<double> samples;
  for (int s = 0; s < 21; ++s) {
    const auto begin = Clock::now();
    for (int i = 0; i < per_sample; ++i) brrr::parallel_for(2, 1, region);
    samples.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
                      per_sample);
  }
  std::nth_element(samples.begin(), samples.begin() + 10, samples.end());
  return samples[10];
}

std::string versions() {
#if defined(__clang__)
  const std::string compiler = "clang++ " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return fmt::format("C++20, {}, {}", compiler, brrr::bench::blas_info().config);
}

}  // namespace examples
