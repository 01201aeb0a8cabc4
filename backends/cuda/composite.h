#pragma once

#include "core/op.h"

namespace brrr::cuda {

/// Runs a composite row as the ops it stands for, unrecorded.
void run_decomposition(OpCall& c);

}  // namespace brrr::cuda
