#pragma once
// What a figure was measured on.

#include <brrr/brrr.h>

#include <string>
#include <vector>

#include "tests/bench/stream.h"

namespace brrr::bench {

/// What a step's time is compared with, measured in this run.
struct Limits {
  Device device;
  int threads = 1;  ///< Of the host.
  MachineLimits machine;
  double spin_ns = 0;
  double gflops = 0;     ///< float32: multiply-adds of all threads, or a large product.
  double copy_gbs = 0;   ///< Of a GPU, between two large arrays.
  DeviceProperties gpu;  ///< Empty for the CPU.

  bool on_gpu() const { return device.type == DeviceType::CUDA; }
  std::string processor() const { return on_gpu() ? gpu.name : machine.cpu; }
  /// Copy bandwidth for a step that touches so many bytes. A GPU's is that of its memory, even if
  /// its cache would hold them.
  double copy_for(double bytes) const;
};
/// One for each device; throws, saying what is missing, where there is no such device.
std::vector<Limits> measure_limits(const std::vector<Device>& devices, int64_t threads);

/// Compiler, C++ standard and OpenBLAS, on one line.
std::string versions();

/// About the machine, and the GPUs among the devices that figures come from.
std::string header_text(const std::vector<Limits>& all);

}  // namespace brrr::bench
