#include "core/backend.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "core/check.h"
#include "core/context.h"
#include "core/device_kernel.h"

namespace brrr {

const Backend& cpu_backend();  // Defined by backends/cpu.
/// Defined by backends/cuda; throws, saying what is missing, where there is no device.
const Backend& cuda_backend();

const Backend& detail::find_backend(DeviceType type) {
  const Backend& b = type == DeviceType::CPU ? cpu_backend() : cuda_backend();
  __atomic_store_n(&detail::backends[static_cast<int>(type)], &b, __ATOMIC_RELEASE);
  return b;
}

void detail::no_such_device(Device device) {
  fail("there is no {}: a process has one GPU, {}; CUDA_VISIBLE_DEVICES chooses which",
       name(device), name(kCUDA));
}

bool cuda_available() {
  try {
    backend(DeviceType::CUDA);
    return true;
  } catch (const Error&) {
    return false;
  }
}

static thread_local constinit Device thread_device = kCPU;
void set_default_device(Device device) {
  backend(device);  // Throws here, not at the first tensor.
  thread_device = device;
}
Device default_device() { return thread_device; }

void synchronize(Device device) { backend(device).synchronize(); }

DeviceProperties device_properties(Device device) { return backend(device).properties(); }
DeviceLimits device_limits(Device device, bool anew) {
  const PlainScope plain;
  return backend(device).limits(anew);
}

double DeviceLimits::gb_per_second(double bytes) const {
  if (copies.empty()) return 0;
  const auto above = std::ranges::find_if(copies, [&](const Copy& c) { return c.bytes >= bytes; });
  if (above == copies.begin()) return above->gb_per_second;
  if (above == copies.end()) return copies.back().gb_per_second;
  const Copy& below = above[-1];
  const double at = std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return below.gb_per_second + at * (above->gb_per_second - below.gb_per_second);
}

double DeviceLimits::gflops_of(DType dtype) const {
  const Peak* is = nullptr;
  for (const Peak& p : peaks) {
    if (p.dtype == dtype || (!is && p.dtype == kFloat32)) is = &p;
  }
  return is ? std::max(is->gflops, is->product_gflops) : 0;
}

MemoryStats memory_stats(Device device) { return backend(device).memory_stats(); }
void reset_peak_memory(Device device) { backend(device).reset_peak(); }
void empty_cache(Device device) { backend(device).empty_cache(); }

static std::atomic<bool> tf32{false};
void set_allow_tf32(bool on) { tf32 = on; }
bool allow_tf32() { return context.tf32 < 0 ? tf32.load() : context.tf32 > 0; }

std::string name_largest(const Holders& holders) {
  std::vector<std::pair<size_t, std::string>> all;
  for (const auto& [key, n] : holders) {
    all.emplace_back(key.second * n, fmt::format("{} x {} of {}", n, key.second, key.first));
  }
  std::sort(all.rbegin(), all.rend());
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(all.size(), 5); ++i) {
    names += (i ? ", " : "; the largest: ") + all[i].second;
  }
  return names;
}

long fault_op(const OpDef& op, uint32_t site) {
  return static_cast<long>(op.index) | static_cast<long>(site) << 32;
}
long fault_op(const OpCall& c) { return fault_op(*c.op, context.site); }

}  // namespace brrr
