// What the processor can do, measured where it is asked for.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "backends/cpu/pool.h"
#include "backends/cpu/stream.h"
#include "backends/limits.h"
#include "core/backend.h"
#include "core/check.h"
#include "ops/vocabulary/gemm_tile.h"

namespace brrr::cpu {

// The best of several hundred empty regions, a few at a time.
double round_trip_ns() {
  std::atomic<int> ranges{0};
  const auto region = [&](int64_t, int64_t) { ranges.fetch_add(1); };
  parallel_for(num_threads(), 1, region);
  if (ranges < 2) return 0;  // One thread took all of it.
  constexpr int rounds = 41, per_round = 200;
  double best = 1e9;
  for (int r = 0; r < rounds; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < per_round; ++i) parallel_for(num_threads(), 1, region);
    const std::chrono::duration<double, std::nano> ns = std::chrono::steady_clock::now() - begin;
    best = std::min(best, ns.count() / per_round);
  }
  return best;
}

static DeviceLimits measure(bool& whole) {
  DeviceLimits l;
  l.threads = num_threads();
  const int cores = std::min(l.threads, num_cpus());
  const double single = fma_peak_gflops(kFloat32), twice = fma_peak_gflops(kFloat64);
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {  // 16 bits are computed in float32.
    l.peaks.push_back({t, (t == kFloat64 ? twice : single) * cores, jit::product_gflops(kCPU, t)});
  }
  l.round_trip_ns = round_trip_ns();
  const bool gang = l.threads > 1;
  whole = !gang || l.round_trip_ns > 0;  // Else somebody has the gang: this is one thread's.
  for (size_t array = size_t{8} << 10; array <= size_t{256} << 20; array *= 4) {
    double best = stream_like(1, array, gang).gb_per_second;
    // A small one is over before a second thread has come, and long before one that has to wait for
    // its core has.
    if (gang && array < kNearBytes) best = std::max(best, stream_like(1, array).gb_per_second);
    l.copies.push_back({2.0 * static_cast<double>(array), best});
  }
  return l;
}

DeviceLimits limits(bool anew) {
  const DeviceProperties p = backend(DeviceType::CPU).properties();
  const std::string build =
      fmt::format("{} threads, {} lanes, {} of {} cores, caches {}, {}", num_threads(),
                  tile::kWidth, num_cpus(), sysconf(_SC_NPROCESSORS_ONLN),
                  sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE));
  return jit::kept_limits({"cpu", p.name, p.versions, build}, anew, measure);
}

}  // namespace brrr::cpu
