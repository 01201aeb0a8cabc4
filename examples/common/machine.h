#pragma once
// What a figure was measured on.

#include <brrr/brrr.h>

#include <string>
#include <vector>

#include "tests/bench/stream.h"

namespace examples {

using brrr::bench::MachineLimits;

/// Time of an empty parallel region on two threads, in nanoseconds; 0 with one thread.
double spin_round_trip_ns();

/// What a step's time is compared with, measured in this run.
struct Limits {
  brrr::Device device;
  int threads = 1;  ///< Of the host.
  MachineLimits machine;
  double spin_ns = 0;
  double gflops = 0;           ///< float32: multiply-adds of all threads, or a large product.
  double copy_gbs = 0;         ///< Of a GPU, between two large arrays.
  brrr::DeviceProperties gpu;  ///< Empty for the CPU.

  /// Copy bandwidth for a step that touches so many bytes. A GPU's is that of its memory, even if
  /// its cache would hold them.
  double copy_for(double bytes) const;
};
/// Throws, saying what is missing, where there is no such device.
Limits measure_limits(brrr::Device device, const MachineLimits& machine, int threads);

/// Compiler, C++ standard and OpenBLAS, on one line.
std::string versions();

/// About the machine, and the GPUs among the devices that figures come from.
std::string header_text(const std::vector<Limits>& all);

}  // namespace examples
