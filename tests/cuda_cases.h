#pragma once
// What tests of the CUDA backend share. They run on whatever device the module in
// $BRRR_CUDA_MODULE offers, the emulator or a GPU, and compare with the CPU.

#include <cstdio>

#include "core/backend.h"
#include "tests/op_cases.h"

namespace brrr::test {

/// Why kCUDA cannot be used; empty if it can.
inline const std::string& no_device() {
  static const std::string why = error_of([] { backend(DeviceType::CUDA); });
  return why;
}
/// To begin a test case with: false, and a word on stdout, where there is no device.
inline bool have_device() {
  if (no_device().empty()) return true;
  static const bool said = [] {
    std::printf("skipped: no device (%s)\n", no_device().c_str());
    return true;
  }();
  return !said;
}

inline Tensor on_cpu(const Tensor& t) {
  return t.detach().to(kCPU);
}
/// A CPU tensor on the device in its own layout: the same view of a copy of all of its storage.
inline Tensor on_gpu(const Tensor& t) {
  const NoGradGuard guard;
  const auto all = static_cast<int64_t>(t.impl()->storage->bytes / itemsize(t.dtype()));
  const Tensor storage = as_strided(t.detach(), {all}, {1}, 0).to(kCUDA);
  return as_strided(storage, t.sizes(), t.strides(), t.storage_offset());
}
inline Tensors on_gpu(const Tensors& all) {
  Tensors moved;
  for (const Tensor& t : all) moved.push_back(on_gpu(t));
  return moved;
}

/// Empty if `gpu` has the values of `cpu` to the last bit, and is on the device.
inline std::string device_difference(const Tensor& gpu, const Tensor& cpu) {
  if (gpu.defined() && gpu.device() != kCUDA) return "the result is not on the device";
  return difference(gpu.defined() ? on_cpu(gpu) : gpu, cpu);
}

}  // namespace brrr::test
