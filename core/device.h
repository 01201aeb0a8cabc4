#pragma once
// What a process can ask of its devices.

#include <cstddef>
#include <string>

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
