#pragma once
// Measured limits, kept on disk beside the kernels: <key> names the machine.

#include <functional>
#include <string>

#include "core/device.h"
#include "core/figures.h"

namespace brrr::jit {

/// The shortest time in seconds of one f() among four in the device's queue.
double best_seconds(Device device, const std::function<void()>& f);
/// Of products of square matrices that grow until one is long enough to use all of the device.
double product_gflops(Device device, DType dtype);

/// Those kept of the device, and of what else decides them, or what `measure` finds and says how
/// long to keep.
DeviceLimits kept_limits(Device device, const std::string& how, bool anew,
                         const std::function<DeviceLimits(Keep&)>& measure);

}  // namespace brrr::jit
