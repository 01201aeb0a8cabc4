#pragma once
// Matrix products through the module's library.

#include "core/backend.h"

namespace brrr::cuda {

/// One algorithm per problem, chosen when it is first met and kept; both modes share it. Float32
/// is computed in float32 unless allow_tf32 says otherwise; 16-bit floats accumulate in float32.
/// Factors may begin anywhere, the result at a multiple of 16 bytes, as memory of its own does.
void gemm(const brrr::Gemm& g);
/// Products that lie at even distances go to the library as one call.
void gemm_batch(const brrr::Gemm& first, int64_t n, const int64_t* at);

}  // namespace brrr::cuda
