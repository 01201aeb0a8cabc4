#pragma once
// Kernels of pointwise rows, generated from the rows' formulas.

#include <string>

#include "backends/cuda/kernels.h"
#include "ops/kinds/device_walk.h"
#include "ops/kinds/pointwise_iteration.h"

namespace brrr::cuda {

/// What a pointwise kernel is specialised for.
struct PointwiseForm {
  const OpDef* op = nullptr;
  DType compute = DType::Float32;
  int n_out = 0, n_in = 0;
  DeviceWalk walk;
  DType dtype[kMostPointwise] = {};  ///< Outputs, then inputs.
  DeviceWalk::Reach reach[kMostPointwise] = {};
  int count() const { return n_out + n_in; }
  KernelKey key() const;
};

/// What the walk of a call needs.
PointwiseForm pointwise_form(const OpDef& op, const Iteration& it);

/// The kernel "k" as text, without the prelude: see ops/kinds/device_pointwise.h for its argument.
std::string pointwise_text(const PointwiseForm& form);

/// Runs a pointwise call.
void run_pointwise(OpCall& c);

}  // namespace brrr::cuda
