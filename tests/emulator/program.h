#pragma once
// The parts of driver.h about programs: compiling and loading them, launching their kernels.

#include "backends/cuda/driver.h"

namespace brrr::emulator {

cuda::Failure compile(const char* source, const char* name, int major, int minor,
                      const char** image, size_t* bytes);
int compiler_version();
cuda::Failure load(const void* image, size_t bytes, cuda::Module** m);
cuda::Failure unload(cuda::Module* m);
cuda::Failure function(cuda::Module* m, const char* name, size_t shared_bytes, cuda::Function** f);
cuda::Failure launch(cuda::Function* f, const unsigned grid[3], const unsigned block[3],
                     size_t shared_bytes, const void* arguments, size_t bytes, cuda::Stream* s);

}  // namespace brrr::emulator
