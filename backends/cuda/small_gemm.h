#pragma once
// small_gemm.cpp: products of float32 by a kernel of our own.

#include "backends/cuda/driver.h"

namespace brrr::cuda {

/// Whether the library would leave most of the card idle: float32 without TF32, and at most a
/// quarter as many tiles of 128 x 128 results, of all the batch, as the card has multiprocessors.
bool is_small(const GemmShape& s);
/// Queues the product. Operands lie as `s` says, and may begin anywhere; k is not 0.
void multiply_small(const GemmShape& s, const void* a, const void* b, void* c);

}  // namespace brrr::cuda
