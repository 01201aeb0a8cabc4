#pragma once
// Matrix products: our own kernels where they are faster, else OpenBLAS.

#include <string>

#include "core/backend.h"

namespace brrr::cpu {

/// C = op(A) op(B) for float32 and float64; C does not overlap A or B. The bits of C depend on
/// shape, transposes and values only: not on threads, alignment or leading dimensions.
void gemm(const Gemm& problem);
/// Backend::gemm_batch.
void gemm_batch(const Gemm& first, int64_t n, const int64_t* at);

/// The kernels that OpenBLAS runs on this machine, for example "SkylakeX".
std::string blas_core();
/// True when the environment forces OpenBLAS to other kernels or block sizes than the machine's
/// own; benchmark figures then say little.
bool blas_crippled();

}  // namespace brrr::cpu
