#pragma once
// Row ops on a GPU: kernels generated from their lambdas.

#include "core/op.h"

namespace brrr::cuda {

/// Whether the row has kernels; others are taken apart into ops.
bool serves_rows(const OpDef& op);
/// Runs a call of such a row.
void run_rows(OpCall& c);

}  // namespace brrr::cuda
