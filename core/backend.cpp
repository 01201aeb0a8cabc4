#include "core/backend.h"

#include <atomic>

#include "core/check.h"

namespace brrr {

const Backend& cpu_backend();  // Defined by backends/cpu.

static std::atomic<const Backend*> cuda_backend{nullptr};

void register_backend(DeviceType type, const Backend* b) {
  BRRR_CHECK(type == DeviceType::CUDA, "register_backend: the CPU backend is built in");
  cuda_backend.store(b, std::memory_order_release);
}

bool cuda_available() { return cuda_backend.load(std::memory_order_acquire) != nullptr; }

const Backend& backend(DeviceType type) {
  if (__builtin_expect(type == DeviceType::CPU, 1)) {
    static const Backend& cpu = cpu_backend();
    return cpu;
  }
  const Backend* b = cuda_backend.load(std::memory_order_acquire);
  BRRR_CHECK(b, "cuda: this build has no CUDA backend; use brrr::kCPU");
  return *b;
}

}  // namespace brrr
