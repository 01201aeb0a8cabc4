#pragma once
// Measured device limits, kept on disk in the kernel cache under a key that names the machine.

#include <functional>
#include <string>

#include "core/device.h"
#include "core/figures.h"

namespace brrr::jit {

/// Seconds per f(): the minimum over 7 samples, each of four calls queued back to back.
double best_seconds(Device device, const std::function<void()>& f);
/// GFLOP/s of square matrix products: doubles the side from 256 until one takes 2 ms or is 8192.
double product_gflops(Device device, DType dtype);

/// The limits kept for this device and `how` (all else that they depend on); if there are none,
/// or with `anew`, those that `measure` returns. `measure` also sets how long they are kept.
DeviceLimits cached_limits(Device device, const std::string& how, bool anew,
                           const std::function<DeviceLimits(Keep&)>& measure);

}  // namespace brrr::jit
