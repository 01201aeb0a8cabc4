#include "backends/limits.h"

#include <algorithm>

#include "backends/cuda/backend.h"
#include "core/context.h"
#include "core/tensor.h"
#include "ops/factory_ops.h"

namespace brrr::cuda {

namespace {

DeviceLimits measure(bool&) {
  DeviceLimits l;
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    const Held products(context.tf32, 0);  // Whatever they may round to otherwise.
    const double rate = jit::product_gflops(kCUDA, t);
    l.peaks.push_back({t, rate, rate});
  }
  const Backend& gpu = backend(kCUDA);
  const Tensor one = zeros({1}, kFloat32, kCUDA);
  float got;
  l.round_trip_ns =
      1e9 * jit::best_seconds(kCUDA, [&] { gpu.copy_to_host(&got, one.data_ptr(), sizeof got); });
  const auto most = static_cast<int64_t>(gpu.properties().memory_bytes / 8);
  for (int64_t array = 1 << 20; array <= std::min<int64_t>(256 << 20, most); array *= 4) {
    const Tensor x = zeros({array / 4}, kFloat32, kCUDA), y = x.clone();
    const auto bytes = static_cast<size_t>(array);
    const double s = jit::best_seconds(kCUDA, [&] { gpu.copy(y.data_ptr(), x.data_ptr(), bytes); });
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
