#pragma once
// After a loss that is not finite: what went bad.

#include <string>

#include "models/module.h"

namespace brrr::models {

/// The first of the tensors that holds a NaN or infinity, as
/// "fc1.weight, float32[8, 6]: 3 of 48 elements are not finite"; "" if all are finite. Undefined
/// tensors and integers are. Reads on the host, so call it outside a recorded step.
std::string first_nonfinite(const std::vector<NamedTensor>& tensors);
/// The same over a module's parameters, each followed by its gradient ("fc1.weight.grad"), and then
/// its buffers. For a training loop, where StepOptions::check_numerics would cost too much:
///
///     if (!std::isfinite(loss.item<float>())) {
///       throw std::runtime_error("step 123: " + brrr::models::first_nonfinite(model));
///     }
///
/// If the update has run, all that it touched is bad: look before it, or skip it as GradScaler
/// does. The op at fault is found by running the step again, from a checkpoint, with
/// check_numerics.
std::string first_nonfinite(const Module& module);

}  // namespace brrr::models
