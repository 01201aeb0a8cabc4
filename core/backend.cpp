#include "core/backend.h"

#include "core/check.h"

namespace brrr {

const Backend& cpu_backend();  // Defined by backends/cpu.

static void set_backend(DeviceType type, const Backend* b) {
  __atomic_store_n(&detail::backends[static_cast<int>(type)], b, __ATOMIC_RELEASE);
}

void register_backend(DeviceType type, const Backend* b) {
  BRRR_CHECK(type == DeviceType::CUDA, "register_backend: the CPU backend is built in");
  set_backend(type, b);
}

bool cuda_available() {
  return __atomic_load_n(&detail::backends[static_cast<int>(DeviceType::CUDA)], __ATOMIC_ACQUIRE);
}

const Backend& detail::find_backend(DeviceType type) {
  BRRR_CHECK(type == DeviceType::CPU, "cuda: this build has no CUDA backend; use brrr::kCPU");
  const Backend& cpu = cpu_backend();
  set_backend(type, &cpu);
  return cpu;
}

}  // namespace brrr
