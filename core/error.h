#pragma once
// One exception type for everything a caller can do wrong.

#include <stdexcept>
#include <string>

namespace brrr {

/// Thrown for bad shapes, dtypes, devices, indices, files and for exhausted memory. The text names
/// the op, the shapes and the remedy. Nothing has changed when it is thrown.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace brrr
