#pragma once
// Matrix products: our own kernels where they are faster, else OpenBLAS.

#include "core/backend.h"

namespace brrr::cpu {

/// C = op(A) op(B) for float32 and float64; C does not overlap A or B. The bits of C depend on
/// shape, transposes and values only: not on threads, alignment or leading dimensions.
void gemm(const Gemm& problem);
/// Backend::gemm_batch.
void gemm_batch(const Gemm& first, int64_t n, const int64_t* at);

}  // namespace brrr::cpu
