#pragma once
// Pointwise formulas as a kernel for a GPU: one op run eagerly, or a fused group of a recorded
// step.

#include <string>
#include <vector>

#include "ops/kinds/device_walk.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

/// What a pointwise kernel computes, and how it reaches its operands.
struct PointwiseProgram {
  /// A tensor as the formulas see it: read from memory first if `loaded`, written to it in the end
  /// if `stored`; between the steps it is in a register.
  struct Window {
    DType dtype;
    DeviceWalk::Reach reach;
    bool loaded, stored;
  };
  /// A number given with the call; or, in a recorded step, the address of its control word.
  struct Number {
    DType dtype;  ///< Float64 or Int64.
    bool control;
  };
  struct Step {
    const OpDef* op;
    DType compute;
    std::vector<int> in;  ///< Windows; of numbers ~index.
    std::vector<int> out;
  };
  std::vector<Window> windows;
  std::vector<Number> numbers;
  std::vector<Step> steps;
  DeviceWalk walk;
  bool fast = false;  ///< 16-bit floats are rounded only when stored.
};

/// The kernel as text, without the prelude. Its argument is a struct of 64-bit words, in this
/// order: the addresses of windows that are loaded or stored, the numbers, and what push_walk()
/// gives. A thread reads all its elements before it writes one.
std::string pointwise_kernel_text(const PointwiseProgram& p, const std::string& name);

}  // namespace brrr
