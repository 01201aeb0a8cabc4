#include "examples/common/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

#include "core/backend.h"

namespace examples {

using Clock = std::chrono::steady_clock;

namespace {

// The shortest time of one f() among four in the queue, in seconds: what the device can do.
double best_seconds(brrr::Device device, const std::function<void()>& f) {
  constexpr int queued = 4;
  double best = 1e9;
  f();
  for (int sample = 0; sample < 7; ++sample) {
    brrr::synchronize(device);
    const auto begin = Clock::now();
    for (int i = 0; i < queued; ++i) f();
    brrr::synchronize(device);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / queued);
  }
  return best;
}

// Beyond every cache.
double device_copy_gbs(brrr::Device device) {
  constexpr int64_t elements = int64_t{64} << 20;
  const brrr::Tensor x = brrr::zeros({elements}, brrr::kFloat32, device),
                     y = brrr::zeros({elements}, brrr::kFloat32, device);
  constexpr size_t bytes = size_t{4} * elements;
  const brrr::Backend& backend = brrr::backend(device.type);
  const double seconds =
      best_seconds(device, [&] { backend.copy(y.data_ptr(), x.data_ptr(), bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds * 1e-9;
}

// Products that grow until one is long enough for the device to be full.
double device_gflops(brrr::Device device) {
  constexpr int64_t largest = 8192;
  constexpr double long_enough = 2e-3;
  for (int64_t n = 256;; n *= 2) {
    const brrr::Tensor a = brrr::randn({n, n}, device), b = brrr::randn({n, n}, device);
    const double seconds = best_seconds(device, [&] { a.matmul(b); });
    const auto side = static_cast<double>(n);
    if (seconds >= long_enough || n == largest) return 2 * side * side * side / seconds * 1e-9;
  }
}

}  // namespace

double Limits::copy_for(double bytes) const {
  if (device.type == brrr::DeviceType::CUDA) return copy_gbs;
  return brrr::bench::stream_like(1, static_cast<size_t>(bytes / 2)).gb_per_second;
}

Limits measure_limits(brrr::Device device, const MachineLimits& machine, int threads) {
  Limits l{device, threads, machine, spin_round_trip_ns(), machine.fma_gflops * threads, 0, {}};
  if (device.type == brrr::DeviceType::CPU) return l;
  l.gpu = brrr::device_properties(device);
  l.gflops = device_gflops(device);
  l.copy_gbs = device_copy_gbs(device);
  return l;
}

double spin_round_trip_ns() {
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

std::string header_text(const std::vector<Limits>& all) {
  const Limits& host = all.front();
  std::string t = fmt::format(
      "{}\n{}\n", brrr::bench::machine_line(host.machine, host.threads, host.spin_ns), versions());
  for (const Limits& l : all) {
    if (l.gpu.name.empty()) continue;
    t += fmt::format("{} | {} | copy {:.0f} GB/s (256 MB) | float32 product {:.0f} GFLOP/s\n",
                     l.gpu.name, l.gpu.versions, l.copy_gbs, l.gflops);
  }
  return t;
}

}  // namespace examples
