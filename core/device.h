#pragma once
// What a process can ask of its devices.

#include <cstddef>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace brrr {

/// Whether tensors can be made on kCUDA in this process: the module brrr_cuda, a driver and a GPU
/// are there. Where they are not, making such a tensor throws and says which is missing.
bool cuda_available();

/// The device on which this thread creates tensors when none is given: zeros, randn, tensor and the
/// like, and so the parameters of models. kCPU at the start. from_blob, files and data sets stay on
/// the CPU. Throws, saying what is missing, where there is no such device.
void set_default_device(Device device);
Device default_device();

/// Waits until everything queued on the device has run. Throws the error that occurred there, if
/// any: an index out of range, say, in a call that returned long ago.
void synchronize(Device device = kCUDA);

struct DeviceProperties {
  std::string name;             ///< "NVIDIA H100 80GB HBM3", or the processor's own name.
  int major = 0, minor = 0;     ///< Compute capability; 0 for the CPU.
  int multiprocessors = 0;      ///< Threads of the pool for the CPU.
  size_t memory_bytes = 0;      ///< Total.
  double memory_bandwidth = 0;  ///< Bytes per second by the data sheet; 0: unknown.
  std::string versions;         ///< Of driver, runtime and compiler.
};
DeviceProperties device_properties(Device device = kCUDA);

/// What a device can do at best: the reference for the times of kernels.
struct DeviceLimits {
  struct Copy {
    double bytes;          ///< Read and written in one pass.
    double gb_per_second;  ///< Read and written bytes together.
  };
  struct Peak {
    DType dtype;
    double gflops;          ///< Multiply-adds in registers, all threads; GPU: product_gflops.
    double product_gflops;  ///< A large product of two matrices.
  };
  int threads = 1;           ///< Of the host.
  std::vector<Peak> peaks;   ///< float32, float64, bfloat16, float16.
  double round_trip_ns = 0;  ///< An empty parallel region, 0 on one thread; on a GPU a copy of one
                             ///< float that is waited for.
  std::vector<Copy> copies;  ///< By size, ascending: from the smallest cache to main memory.

  /// Of a copy of `bytes`, read and written; interpolated in the logarithm of the measured sizes.
  double gb_per_second(double bytes) const;
  /// Of multiply-adds or of a large product, whichever is faster; float32's if not measured.
  double gflops_of(DType dtype) const;
  double gflops() const { return gflops_of(DType::Float32); }
};
/// Measured at the first call, which takes a second or two, for the current threads of the pool;
/// kept on disk with the kernels, for every later process. `anew`: measured again.
DeviceLimits device_limits(Device device = kCPU, bool anew = false);

/// Bytes of a device's memory.
struct MemoryStats {
  size_t live = 0;         ///< Held by tensors.
  size_t peak = 0;         ///< The most that `live` has been since reset_peak_memory().
  size_t reserved = 0;     ///< Taken from the system, cached for later tensors included.
  size_t allocations = 0;  ///< A count, not bytes.
};
MemoryStats memory_stats(Device device = kCUDA);
void reset_peak_memory(Device device = kCUDA);
/// Returns cached memory to the system.
void empty_cache(Device device = kCUDA);

/// Lets products of float32 on a GPU round their factors to TF32 (10 bits), which is several times
/// faster. Off at the start. A recorded step keeps the setting of its recording.
void set_allow_tf32(bool on);
bool allow_tf32();

}  // namespace brrr
