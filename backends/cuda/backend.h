#pragma once
// The functions that backend.cpp fills core's Backend with, by the file that defines them.

#include "backends/cuda/driver.h"
#include "core/backend.h"

namespace brrr::cuda {

// --- gemm.cpp: matrix products through the module's library --------------------------------------

/// One algorithm per problem, chosen on first use and kept; both modes share it. Float32 is
/// computed in float32 unless allow_tf32 is set; 16-bit floats accumulate in float32. Factors may
/// have any alignment; the result is aligned to 16 bytes, as every allocation is. The n products
/// are one batched library call.
void gemm(const brrr::Gemm& first, int64_t n, const int64_t* at);
/// Allocates the workspace of the second stream, if there is memory; not during a capture.
void reserve_beside();

// --- small_gemm.cpp: our own kernel for small float32 products -----------------------------------

/// Whether the library would leave most of the GPU idle: float32 without TF32, with at most a
/// quarter as many 128 x 128 tiles in the whole batch as the GPU has multiprocessors. Never for
/// more than 2^26 multiplications or for operands beyond 32-bit offsets.
bool is_small(const GemmShape& s);
/// Queues the product. Operands are laid out as `s` says, with any alignment; k > 0.
void multiply_small(const GemmShape& s, const void* a, const void* b, void* c);

// --- staging.cpp: copies between host memory and the device --------------------------------------

/// Queues the copy; the caller may change `from` at once.
void to_device(void* to, const void* from, size_t bytes);
/// Copies, waiting only for work queued before. Throws, and clears, a fault that this recorded.
void to_host(void* to, const void* from, size_t bytes);

// --- programs.cpp: built kernels of a recorded step ----------------------------------------------

KernelModule* build(const KernelSource& source, bool& cached);
void* symbol(KernelModule* m, const char* name);
void unload(KernelModule* m) noexcept;

}  // namespace brrr::cuda
