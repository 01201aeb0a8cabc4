#pragma once
// Calls of views, library ops, composites, factories and random draws, and of what is composed of
// them: each case is named after the row or function that it covers.

#include "tests/op_cases.h"

namespace brrr::test {

struct Case {
  const char* covers;
  Tensors in;  ///< Float64 stands for any floating dtype.
  /// What it makes by itself is on the first input's device.
  std::function<Tensor(const Tensors&)> fn;
};

/// Functions of their inputs.
std::vector<Case> function_cases();
/// These and random draws, the same from the same seed.
std::vector<Case> all_cases();
/// Leaves for a call in dtype t.
Tensors inputs_of(const Case& c, DType t);

}  // namespace brrr::test
