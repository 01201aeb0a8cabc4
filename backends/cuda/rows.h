#pragma once
// Row ops and reductions on a GPU: kernels generated from their lambdas.
//
// THE ORDER of a reduction is a function of the merged shape only (see
// ops/kinds/reduction_layout.h):
// 1. Rows of n elements. Up to 1024, a warp takes a row: lane l takes elements l, l + 32, ... one
//    after the other from init; then the lanes are combined, l with l + 16, + 8, + 4, + 2, + 1.
//    Longer rows are cut into chunks of 16384, a block each: thread t of 256 takes elements t,
//    t + 256, ...; the lanes of a warp are combined as before, then the eight warps the same way.
//    The chunks' results are reduced as a row of their own, without map.
// 2. Columns. Per output, blocks of 64 rows one row after the other from init, then the blocks:
//    block b goes to slot b % 32, which takes its own one after the other from init, then slot s is
//    combined with s + 16, + 8, + 4, + 2, + 1. More than 4096 blocks are rows of such columns.

#include <string>

#include "backends/cuda/kernels.h"
#include "ops/program/rows.h"

namespace brrr::cuda {

/// Whether the row has kernels; others are taken apart into ops.
bool serves_rows(const OpDef& op);
/// Runs a call of such a row.
void run_rows(OpCall& c);

/// What a kernel of a reduction is specialised for.
struct ReductionForm {
  const OpDef* op = nullptr;
  program::ReductionPart part = program::ReductionPart::Rows;
  bool wide = false;                ///< A block has a row, not a warp.
  bool map = true, finish = false;  ///< The first pass maps, the last one finishes.
  DType in = DType::Float32, compute = DType::Float32, out = DType::Float32;
  KernelKey key() const;
  const char* kernel() const;  ///< Its name in the text.
  int threads() const;
  std::string text() const;  ///< Without the prelude.
};
/// Runs a reduction call.
void run_reduction(OpCall& c);

}  // namespace brrr::cuda
