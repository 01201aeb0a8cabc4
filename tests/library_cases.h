#pragma once
// Calls of views, library ops, composites, factories and random draws, and of their compositions:
// each case is named after the row or function that it covers.

#include "tests/op_cases.h"

namespace brrr::test {

struct Case {
  const char* covers;
  Tensors in;  ///< Float64 inputs stand for any floating dtype.
  /// Tensors that it creates are on the first input's device.
  std::function<Tensor(const Tensors&)> fn;
};

/// Cases that are functions of their inputs.
std::vector<Case> function_cases();
/// Those and random draws, which repeat for the same seed.
std::vector<Case> all_cases();
/// Leaf inputs for a call in dtype t.
Tensors inputs_of(const Case& c, DType t);

}  // namespace brrr::test
