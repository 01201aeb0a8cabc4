// What a GPU can do, measured where it is asked for.
#include "backends/cuda/limits.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "backends/limits.h"
#include "core/backend.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "ops/factory_ops.h"

namespace brrr::cuda {

namespace {

// The shortest time of one f() among four in the queue.
double best_seconds(const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  constexpr int queued = 4;
  double best = 1e9;
  f();
  for (int sample = 0; sample < 7; ++sample) {
    synchronize(kCUDA);
    const auto begin = Clock::now();
    for (int i = 0; i < queued; ++i) f();
    synchronize(kCUDA);
    const std::chrono::duration<double> s = Clock::now() - begin;
    best = std::min(best, s.count() / queued);
  }
  return best;
}

// Products that grow until one is long enough for the device to be full.
double product_gflops() {
  constexpr int64_t largest = 8192;
  constexpr double long_enough = 2e-3;
  for (int64_t n = 256;; n *= 2) {
    const Tensor a = randn({n, n}, kCUDA), b = randn({n, n}, kCUDA);
    const double seconds = best_seconds([&] { a.matmul(b); });
    const auto side = static_cast<double>(n);
    if (seconds >= long_enough || n == largest) return 2 * side * side * side / seconds * 1e-9;
  }
}

DeviceLimits measure(bool&) {
  DeviceLimits l;
  // Neither the stream of draws nor what products may round to is to change for it.
  const RngState draws = rng_state();
  const bool tf32 = allow_tf32();
  set_allow_tf32(false);
  l.gflops = product_gflops();
  set_allow_tf32(tf32);
  set_rng_state(draws);
  const Backend& gpu = backend(kCUDA);
  const Tensor one = zeros({1}, kFloat32, kCUDA);
  float got;
  l.round_trip_ns = 1e9 * best_seconds([&] { gpu.copy_to_host(&got, one.data_ptr(), sizeof got); });
  const auto most = static_cast<int64_t>(gpu.properties().memory_bytes / 8);
  for (int64_t array = 1 << 20; array <= std::min<int64_t>(256 << 20, most); array *= 4) {
    const Tensor x = zeros({array / 4}, kFloat32, kCUDA), y = x.clone();
    const auto bytes = static_cast<size_t>(array);
    const double s = best_seconds([&] { gpu.copy(y.data_ptr(), x.data_ptr(), bytes); });
    l.copies.push_back({2.0 * static_cast<double>(bytes), 2e-9 * static_cast<double>(bytes) / s});
  }
  return l;
}

}  // namespace

DeviceLimits limits(bool anew) {
  const DeviceProperties p = backend(kCUDA).properties();
  return jit::kept_limits({"cuda", p.name, p.versions}, anew, measure);
}

}  // namespace brrr::cuda
