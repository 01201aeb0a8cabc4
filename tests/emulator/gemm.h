#pragma once
// Driver::choose and Driver::multiply.

#include "backends/cuda/driver.h"

namespace brrr::emulator {

cuda::Failure choose(const cuda::GemmShape* shape, size_t workspace_bytes, cuda::Gemm** plan);
cuda::Failure multiply(cuda::Gemm* plan, const void* a, const void* b, void* c, void* workspace,
                       size_t workspace_bytes, cuda::Stream* s);

}  // namespace brrr::emulator
