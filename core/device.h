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

/// Where this thread makes tensors for which no device is given: zeros, randn, tensor and their
/// like, and so the parameters of models. kCPU at the start. from_blob, files and data sets stay on
/// the CPU. Throws, saying what is missing, where there is no such device.
void set_default_device(Device device);
Device default_device();

/// Waits until everything queued on the device has run. Throws what went wrong there, if anything:
/// an index that was out of range, say, whose call has long returned.
void synchronize(Device device = kCUDA);

struct DeviceProperties {
  std::string name;             ///< "NVIDIA H100 80GB HBM3", or the processor's own name.
  int major = 0, minor = 0;     ///< Compute capability; 0 for the CPU.
  int multiprocessors = 0;      ///< Threads of the pool for the CPU.
  size_t memory_bytes = 0;      ///< All there is.
  double memory_bandwidth = 0;  ///< Bytes a second by the data sheet; 0: not known.
  std::string versions;         ///< Of driver, runtime and compiler.
};
DeviceProperties device_properties(Device device = kCUDA);

/// What a device can do at best: what the time of a kernel is compared with.
struct DeviceLimits {
  struct Copy {
    double bytes;          ///< Read and written in one pass.
    double gb_per_second;  ///< Of both.
  };
  struct Peak {
    DType dtype;
    double gflops;          ///< Multiply-adds in registers, of all threads; on a GPU as the next.
    double product_gflops;  ///< A large product of two matrices.
  };
  int threads = 1;           ///< Of the host.
  std::vector<Peak> peaks;   ///< float32, float64, bfloat16, float16.
  double round_trip_ns = 0;  ///< An empty parallel region, 0 on one thread; on a GPU a copy of one
                             ///< float that is waited for.
  std::vector<Copy> copies;  ///< By size, rising: from the smallest cache to main memory.

  /// For so many bytes, read and written; between the sizes measured by their logarithm.
  double gb_per_second(double bytes) const;
  /// Of multiply-adds or of a large product, whichever was faster. What is no float is float32.
  double gflops_of(DType dtype) const;
  double gflops() const { return gflops_of(DType::Float32); }
};
/// Measured at the first call, which takes a second or two, for the threads of the pool as they
/// are; kept on disk with the kernels, for every later process. With `anew` measured again.
DeviceLimits device_limits(Device device = kCPU, bool anew = false);

/// Bytes of a device's memory.
struct MemoryStats {
  size_t live = 0;         ///< Held by tensors.
  size_t peak = 0;         ///< The most that `live` has been since reset_peak_memory().
  size_t reserved = 0;     ///< Taken from the system, cached for later tensors included.
  size_t allocations = 0;  ///< How many there have been, not bytes.
};
MemoryStats memory_stats(Device device = kCUDA);
void reset_peak_memory(Device device = kCUDA);
/// Gives what is cached back to the system.
void empty_cache(Device device = kCUDA);

/// Lets products of float32 on a GPU round their factors to TF32 (10 bits), which is several times
/// faster. Off at the start. A recorded step keeps to what held when it was recorded.
void set_allow_tf32(bool on);
bool allow_tf32();

}  // namespace brrr
