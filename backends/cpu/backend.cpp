// The CPU implementation of core's Backend.
#include "core/backend.h"

#include <cblas.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "backends/cpu/allocator.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/jit.h"
#include "backends/cpu/pool.h"
#include "backends/cpu/stream.h"
#include "core/op.h"

namespace brrr {

static std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "cpu";
}
static DeviceProperties machine() {
  DeviceProperties p;
  p.name = processor_name();
  p.memory_bytes =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  p.versions = fmt::format("compiler {}, OpenBLAS core {}", __VERSION__, openblas_get_corename());
  return p;
}
// Cached, except the thread count: every plan calls this, and reading the name takes 30 us.
static DeviceProperties properties() {
  static const DeviceProperties& all = *new DeviceProperties(machine());
  DeviceProperties p = all;
  p.multiprocessors = cpu::num_threads();
  return p;
}
static void copy_bytes(void* dst, const void* src, size_t bytes) {
  if (bytes) std::memcpy(dst, src, bytes);  // Pointers may be null where bytes is 0.
}
static void launch(OpCall& call) {
  if (call.op->check_values) call.op->check_values(call);
  call.op->on(DeviceType::CPU).run(call);
}

const Backend& cpu_backend() {
  static const Backend b{
      .allocate = cpu::allocate,
      .deallocate = cpu::deallocate,
      .describe_memory = cpu::describe_memory,
      .memory_stats = cpu::memory_stats,
      .reset_peak = cpu::reset_peak,
      .empty_cache = cpu::trim,
      .properties = properties,
      .limits = cpu::limits,
      .copy_from_host = copy_bytes,
      .copy_to_host = copy_bytes,
      .copy = copy_bytes,
      .launch = launch,
      .gemm = cpu::gemm_batch,
      .synchronize = [] {},
      .build = [](const KernelSource& s, bool& cached) { return cpu::build(s.all(), cached); },
      .symbol = cpu::symbol,
      .unload = cpu::unload,
  };
  return b;
}

}  // namespace brrr
