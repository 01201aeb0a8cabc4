#pragma once
// Tools::choose and the two that follow it.

#include "backends/cuda/driver.h"

namespace brrr::emulator {

cuda::Failure choose(const cuda::GemmShape* shape, size_t workspace_bytes, cuda::Gemm** plan);
cuda::Failure multiply(cuda::Gemm* plan, const void* a, const void* b, void* c, void* workspace,
                       size_t workspace_bytes, cuda::Stream* s);
cuda::Failure release_gemm(cuda::Gemm* plan);

}  // namespace brrr::emulator
