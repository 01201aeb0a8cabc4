#pragma once
// The machine that a figure was measured on.

#include <brrr/brrr.h>

#include <string>
#include <vector>

namespace brrr::bench {

struct BlasInfo {
  std::string core;     ///< The kernels that OpenBLAS chose, for instance "SkylakeX".
  std::string config;   ///< Its version and build options.
  std::string warning;  ///< Empty, or why its figures do not represent this machine.
};
BlasInfo blas_info();

/// The limits that a step's time is compared with, measured in this run.
struct Limits : DeviceLimits {
  Device device;
  std::string cpu;        ///< From /proc/cpuinfo.
  std::string clock;      ///< At the end of the measurement: "2596 MHz"; see clock.h.
  int cores = 0;          ///< Online,
  int cores_allowed = 0;  ///< and in this process's affinity mask.
  BlasInfo blas;
  LaunchCosts launches;
  DeviceProperties gpu;  ///< Empty for the CPU.

  bool on_gpu() const { return device.type == DeviceType::CUDA; }
  std::string processor() const { return on_gpu() ? gpu.name : cpu; }
  /// Copy bandwidth within the caches (256 KB read and written) and beyond them.
  double cached_gbs() const { return gb_per_second(256 << 10); }
  double memory_gbs() const { return copies.back().gb_per_second; }
};
/// One entry for each device, with the pool's current threads; throws, naming what is missing, if
/// there is no such device.
std::vector<Limits> measure_limits(const std::vector<Device>& devices);

/// Describes the host; printed over every table of figures.
std::string machine_line(const Limits& limits);

/// Compiler, C++ standard and OpenBLAS, on one line.
std::string versions();

/// Describes the machine and the GPUs among the devices.
std::string header_text(const std::vector<Limits>& all);

}  // namespace brrr::bench
