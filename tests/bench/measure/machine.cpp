#include "tests/bench/measure/machine.h"

#include <cblas.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "backends/cpu/pool.h"
#include "tests/bench/measure/clock.h"

namespace brrr::bench {

BlasInfo blas_info() {
  BlasInfo info{openblas_get_corename(), openblas_get_config(), ""};
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    if (!info.warning.empty()) info.warning += ", ";
    info.warning += std::string(name) + "=" + value;
  }
  if (!info.warning.empty()) info.warning += " is set: OpenBLAS may run far below its speed";
  return info;
}

std::vector<Limits> measure_limits(const std::vector<Device>& devices) {
  std::vector<Limits> all;
  for (Device device : devices) {
    Limits& l = all.emplace_back();
    static_cast<DeviceLimits&>(l) = device_limits(device, true);
    l.device = device;
    l.cpu = device_properties(kCPU).name;
    l.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    l.cores_allowed = cpu::num_cpus();
    l.blas = blas_info();
    l.launches = launch_costs(device, true);
    l.clock = cpu_clock();
    if (l.on_gpu()) l.gpu = device_properties(device);
  }
  return all;
}

std::string machine_line(const Limits& l) {
  std::string line = fmt::format("{} | clock {} | {} of {} cores | threads {}", l.cpu, l.clock,
                                 l.cores_allowed, l.cores, device_properties(kCPU).multiprocessors);
  if (!l.on_gpu()) {
    line += fmt::format(
        " | copy {:.0f} GB/s (256 KB read and written), {:.0f} GB/s (256 MB) | FMA peak {:.0f} "
        "GFLOP/s a core",
        l.cached_gbs(), l.memory_gbs(), l.gflops() / std::min(l.threads, cpu::num_cpus()));
  }
  line += " | OpenBLAS core " + l.blas.core;
  if (!l.on_gpu() && l.round_trip_ns > 0) {
    line += fmt::format(" | spin round trip {:.0f} ns", l.round_trip_ns);
  }
  const LaunchCosts& c = l.launches;
  line += fmt::format(" | launch {:.0f} ns eager, {:.0f} ns in a replay, {:.0f} ns to match its op",
                      c.eager_ns, c.graph_ns, c.match_ns);
  if (!l.blas.warning.empty()) line += " | WARNING: " + l.blas.warning;
  return line;
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
  std::string t = fmt::format("{}\n{}\n", machine_line(all.front()), versions());
  for (const Limits& l : all) {
    if (!l.on_gpu()) continue;
    t += fmt::format("{} | {} | copy {:.0f} GB/s (256 MB) | float32 product {:.0f} GFLOP/s\n",
                     l.gpu.name, l.gpu.versions, l.memory_gbs(), l.gflops());
  }
  return t;
}

}  // namespace brrr::bench
