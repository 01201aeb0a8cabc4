#include "backends/limits.h"

#include <algorithm>

#include "core/figures.h"
#include "core/tensor.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::jit {

constexpr const char* kForm = "brrr-limits-5";  // Version of the layout and the measuring method.

static std::vector<double> figures_of(const DeviceLimits& l) {
  std::vector<double> all{static_cast<double>(l.threads), l.round_trip_ns,
                          static_cast<double>(l.peaks.size())};
  for (const auto& p : l.peaks) {
    all.insert(all.end(), {static_cast<double>(p.dtype), p.gflops, p.product_gflops});
  }
  for (const auto& c : l.copies) all.insert(all.end(), {c.bytes, c.gb_per_second});
  return all;
}

// The inverse of figures_of.
static DeviceLimits limits_of(const std::vector<double>& all) {
  DeviceLimits l;
  l.threads = static_cast<int>(all[0]);
  l.round_trip_ns = all[1];
  size_t k = 3;
  for (const size_t end = k + 3 * static_cast<size_t>(all[2]); k < end; k += 3) {
    l.peaks.push_back({static_cast<DType>(all[k]), all[k + 1], all[k + 2]});
  }
  for (; k < all.size(); k += 2) l.copies.push_back({all[k], all[k + 1]});
  return l;
}

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

double product_gflops(Device device, DType dtype) {
  constexpr int64_t largest = 8192;
  constexpr double long_enough = 2e-3;
  for (int64_t n = 256;; n *= 2) {
    // Not random numbers: they would advance the user's RNG. Not zeros: they draw less power.
    const Tensor a = sin(arange(static_cast<double>(n * n), device)).view({n, n}).to(dtype);
    const double seconds = best_seconds(device, [&] { a.matmul(a); });
    if (seconds < long_enough && n < largest) continue;
    const auto side = static_cast<double>(n);
    return 2 * side * side * side / seconds * 1e-9;
  }
}

DeviceLimits cached_limits(Device device, const std::string& how, bool anew,
                           const std::function<DeviceLimits(Keep&)>& measure) {
  const DeviceProperties p = device_properties(device);
  return limits_of(cached_figures({kForm, name(device), p.name, p.versions, how}, anew,
                                  [&](Keep& keep) { return figures_of(measure(keep)); }));
}

}  // namespace brrr::jit
