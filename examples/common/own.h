#pragma once
// A model of one's own.

#include "examples/common/task.h"

namespace examples {

struct OwnOptions {
  int64_t width = 64;
  int64_t scales = 0;  ///< Numbers of a vector that is scaled and shifted, too; 0: none is.
};
/// See own.cpp: change it to what you train, then `overhead --own` takes it apart.
Task own_task(const OwnOptions& options = {});

}  // namespace examples
