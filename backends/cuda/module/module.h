#pragma once
// What the parts of the module offer each other.

#include "backends/cuda/module/status.h"

namespace brrr::cuda {

extern const Driver driver;

/// The thread's next calls act on the device that `Driver::open` has opened.
void enter();
cudaStream_t stream_of(Stream* s);
/// The versions that have to fit each other, for the words of a failure.
std::string versions(int major, int minor);

Failure compile(const char* source, const char* name, int major, int minor, void** image,
                size_t* bytes);
void release_image(void* image);
int compiler_version();

Failure plan(const GemmShape* shape, size_t workspace_bytes, Gemm** plan);
Failure multiply(Gemm* plan, const void* a, const void* b, void* c, void* workspace,
                 size_t workspace_bytes, Stream* s);
Failure release_plan(Gemm* plan);

}  // namespace brrr::cuda
