#pragma once
// Kernels of pointwise rows, generated from the rows' formulas.

#include <string>

#include "backends/cuda/kernels.h"
#include "ops/kinds/pointwise_iteration.h"
#include "ops/program/cuda.h"

namespace brrr::cuda {

/// What a pointwise kernel is specialised for.
struct PointwiseForm {
  static constexpr uint8_t kNumber = 6;  ///< Given with the call.
  const OpDef* op = nullptr;
  DType compute = DType::Float32;
  int n_out = 0, n_in = 0;
  program::Walk walk;
  DType dtype[kMostPointwise] = {};    ///< Outputs, then inputs.
  uint8_t reach[kMostPointwise] = {};  ///< program::Window::Reach, or kNumber.
  int count() const { return n_out + n_in; }
  KernelKey key() const;
};

/// What the walk of a call needs.
PointwiseForm pointwise_form(const OpDef& op, const Iteration& it);

/// The kernel "k" as text, without the prelude.
std::string pointwise_text(const PointwiseForm& form);

/// Runs a pointwise call.
void run_pointwise(OpCall& c);

}  // namespace brrr::cuda
