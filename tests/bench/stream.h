#pragma once

#include <cstddef>
#include <string>

namespace brrr::bench {

// What this machine can do, measured in the run whose figures are compared with it: machines, and
// what else runs on them, differ from day to day. All of it is one thread's.

enum class Store {
  Plain,       // through the caches: best while the arrays fit in them
  PastCaches,  // non-temporal: saves reading what is overwritten; best beyond the last cache
};

struct StreamTime {
  double seconds = 0;        // median of one pass
  double gb_per_second = 0;  // bytes read and written in a pass, over the median
};

// Copies an array of `bytes` to another; counts bytes read plus bytes written.
// Throws std::invalid_argument unless bytes is at least 1024.
StreamTime copy_bandwidth(std::size_t bytes, Store store);

// Adds n_reads float32 arrays (1 to 8) of `bytes` into one output array (n_reads == 1: copies):
// what a fused pointwise kernel with these streams takes when its arithmetic costs nothing.
StreamTime stream_like(int n_reads, std::size_t bytes, Store store);

// The better of the two stores at this size.
StreamTime stream_like(int n_reads, std::size_t bytes);

// float32 multiply-adds of one core in registers, two operations each, in GFLOP/s.
double fma_peak_gflops();

struct BlasInfo {
  std::string core;     // the kernels that OpenBLAS chose, for instance "SkylakeX"
  std::string config;   // its version and build options
  std::string warning;  // empty, or why its figures are not this machine's
};
BlasInfo blas_info();

std::string cpu_model();  // from /proc/cpuinfo, or "unknown"

struct MachineLimits {
  std::string cpu;
  int cores = 0;          // online
  int cores_allowed = 0;  // in this process's affinity mask
  BlasInfo blas;
  double copy_cached_gbs = 0;  // 256 KB per array, plain stores
  double copy_memory_gbs = 0;  // 256 MB per array, the better store
  double fma_gflops = 0;
};

// Measures; takes a second or two.
MachineLimits measure_machine();

// One line to print over every table of figures. threads: what the figures use; spin_round_trip_ns:
// the pool's measured round trip, or 0 where there is none.
std::string machine_line(const MachineLimits& limits, int threads, double spin_round_trip_ns);

}  // namespace brrr::bench
