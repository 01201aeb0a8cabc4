#pragma once
// What backend.cpp fills core's Backend with, by the file where it is.

#include "backends/cuda/driver.h"
#include "core/backend.h"

namespace brrr::cuda {

// --- gemm.cpp: matrix products through the module's library --------------------------------------

/// One algorithm per problem, chosen when it is first met and kept; both modes share it. Float32
/// is computed in float32 unless allow_tf32 says otherwise; 16-bit floats accumulate in float32.
/// Factors may begin anywhere, the result at a multiple of 16 bytes, as memory of its own does. All
/// products go to the library as one call.
void gemm(const brrr::Gemm& first, int64_t n, const int64_t* at);
/// What products beside others need, if there is memory for it; not within a capture.
void reserve_beside();

// --- small_gemm.cpp: products of float32 by a kernel of our own ----------------------------------

/// Whether the library would leave most of the card idle: float32 without TF32, and at most a
/// quarter as many tiles of 128 x 128 results, of all the batch, as the card has multiprocessors.
bool is_small(const GemmShape& s);
/// Queues the product. Operands lie as `s` says, and may begin anywhere; k is not 0.
void multiply_small(const GemmShape& s, const void* a, const void* b, void* c);

// --- staging.cpp: copies between host memory and the device --------------------------------------

/// Queued; `from` may be changed at once.
void to_device(void* to, const void* from, size_t bytes);
/// Waits for all that is queued before it, and for nothing else. Throws if that has noted a
/// fault, which is forgotten then.
void to_host(void* to, const void* from, size_t bytes);

// --- programs.cpp: built kernels of a recorded step ----------------------------------------------

KernelModule* build(const KernelSource& source, bool& cached);
void* symbol(KernelModule* m, const char* name);
void unload(KernelModule* m) noexcept;

}  // namespace brrr::cuda
