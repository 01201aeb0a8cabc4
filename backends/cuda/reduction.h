#pragma once
// Kernels of reduction rows, generated from the rows' formulas.
//
// THE ORDER on a GPU is a function of the merged shape only (see ops/kinds/reduction_layout.h):
// 1. Rows of n elements. Up to 1024, a warp takes a row: lane l takes elements l, l + 32, ... one
//    after the other from init; then the lanes are combined, l with l + 16, + 8, + 4, + 2, + 1.
//    Longer rows are cut into chunks of 16384, a block each: thread t of 256 takes elements t,
//    t + 256, ...; the lanes of a warp are combined as before, then the eight warps the same way.
//    The chunks' results are reduced as a row of their own, without map.
// 2. Columns. Per output, blocks of 256 rows: thread y of 8 takes rows y, y + 8, ... one after the
//    other from init; then y is combined with y + 4, + 2, + 1. The blocks' results are reduced as
//    rows of such columns, without map.

#include <string>

#include "backends/cuda/kernels.h"
#include "ops/kinds/reduction.h"

namespace brrr::cuda {

/// What a reduction kernel is specialised for.
struct ReductionForm {
  enum Shape : uint8_t { Warps, Blocks, Columns };
  const OpDef* op = nullptr;
  Shape shape = Warps;
  bool map = false, finish = false;  ///< The first pass maps, the last one finishes.
  DType in = DType::Float32, compute = DType::Float32, out = DType::Float32;
  KernelKey key() const;
};

/// The kernel "k" as text, without the prelude.
std::string reduction_text(const ReductionForm& form);

/// Runs a reduction call.
void run_reduction(OpCall& c);

}  // namespace brrr::cuda
