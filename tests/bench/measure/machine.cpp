#include "tests/bench/measure/machine.h"

#include <fmt/format.h>

#include <functional>

#include "core/backend.h"
#include "tests/bench/measure/spin.h"

namespace brrr::bench {

namespace {

// The shortest time of one f() among four in the queue, in seconds: what the device can do.
double best_seconds(Device device, const std::function<void()>& f) {
  constexpr int queued = 4;
  double best = 1e9;
  f();
  for (int sample = 0; sample < 7; ++sample) {
    synchronize(device);
    const auto begin = Clock::now();
    for (int i = 0; i < queued; ++i) f();
    synchronize(device);
    best = std::min(best, seconds_since(begin) / queued);
  }
  return best;
}

// Beyond every cache.
double device_copy_gbs(Device device) {
  constexpr int64_t elements = int64_t{64} << 20;
  constexpr size_t bytes = size_t{4} * elements;
  const Tensor x = zeros({elements}, kFloat32, device), y = x.clone();
  const Backend& gpu = backend(device.type);
  const auto copy = [&] { gpu.copy(y.data_ptr(), x.data_ptr(), bytes); };
  return 2.0 * static_cast<double>(bytes) / best_seconds(device, copy) * 1e-9;
}

// Products that grow until one is long enough for the device to be full.
double device_gflops(Device device) {
  constexpr int64_t largest = 8192;
  constexpr double long_enough = 2e-3;
  for (int64_t n = 256;; n *= 2) {
    const Tensor a = randn({n, n}, device), b = randn({n, n}, device);
    const double seconds = best_seconds(device, [&] { a.matmul(b); });
    const auto side = static_cast<double>(n);
    if (seconds >= long_enough || n == largest) return 2 * side * side * side / seconds * 1e-9;
  }
}

}  // namespace

double Limits::copy_for(double bytes) const {
  if (on_gpu()) return copy_gbs;
  return stream_like(1, static_cast<size_t>(bytes / 2)).gb_per_second;
}

std::vector<Limits> measure_limits(const std::vector<Device>& devices, int64_t threads) {
  const auto machine = measure_machine();
  const int n = static_cast<int>(threads);
  std::vector<Limits> all;
  for (Device device : devices) {
    Limits& l = all.emplace_back(
        Limits{device, n, machine, spin_round_trip_ns(), machine.fma_gflops * n, 0, {}});
    if (!l.on_gpu()) continue;
    l.gpu = device_properties(device);
    l.gflops = device_gflops(device);
    l.copy_gbs = device_copy_gbs(device);
  }
  return all;
}

std::string versions() {
#if defined(__clang__)
  const std::string compiler = "clang++ " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return fmt::format("C++20, {}, {}", compiler, blas_info().config);
}

std::string header_text(const std::vector<Limits>& all) {
  const Limits& host = all.front();
  std::string t =
      fmt::format("{}\n{}\n", machine_line(host.machine, host.threads, host.spin_ns), versions());
  for (const Limits& l : all) {
    if (!l.on_gpu()) continue;
    t += fmt::format("{} | {} | copy {:.0f} GB/s (256 MB) | float32 product {:.0f} GFLOP/s\n",
                     l.gpu.name, l.gpu.versions, l.copy_gbs, l.gflops);
  }
  return t;
}

}  // namespace brrr::bench
