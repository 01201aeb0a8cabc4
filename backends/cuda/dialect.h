// The last part of the device prelude: what kernels use besides ops/vocabulary/vec_device.h. For
// NVRTC only; the emulator has its own version (tests/emulator/dialect.h).
#ifndef BRRR_EMULATED

// Defines a kernel with one argument, the struct p. Then come its __launch_bounds__: threads per
// block and, optionally, resident blocks per multiprocessor. Only the threads of a BLOCK_KERNEL may
// communicate (barriers, shared memory, shuffles).
#define KERNEL(name, Params, ...) \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Params p)
#define BLOCK_KERNEL KERNEL

// Declares `T* name`, the launch's dynamic shared memory.
#define DYNAMIC_SHARED(T, name)                                \
  extern __shared__ __align__(16) unsigned char brrr_shared[]; \
  T* const name = reinterpret_cast<T*>(brrr_shared)

namespace brrr::vx {

// --- warp-wide operations: all 32 threads take part ----------------------------------------------

template <class T> BRRR_VX T shuffle(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> BRRR_VX T shuffle_xor(T x, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, x, lane_mask);
}
template <class T> BRRR_VX T shuffle_down(T x, unsigned delta) {
  return __shfl_down_sync(0xffffffffu, x, delta);
}
// A macro, because CUDA still declares a function of this name.
#define ballot(yes) __ballot_sync(0xffffffffu, yes)

// c[16, 8] += a[16, 16] b[16, 8], with PTX's distribution of the elements over the warp. Volatile:
// the whole warp must execute it, so the compiler must not sink it into a branch that uses c.
#define BRRR_VX_MMA(name, type)                                                       \
  BRRR_VX void name(float* c, const unsigned* a, const unsigned* b) {                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type               \
                 ".f32 "                                                              \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"    \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
BRRR_VX_MMA(mma_bf16, "bf16")
BRRR_VX_MMA(mma_f16, "f16")
#undef BRRR_VX_MMA

BRRR_VX unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
// ldmatrix: loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l passes the
// address of row l % 8 of matrix l / 8 and receives two adjacent elements of each matrix, as mma
// takes them: of row l / 4 or, transposed (.trans), of column l / 4.
#define BRRR_VX_MATRICES(name, turn)                                                        \
  BRRR_VX void name(unsigned* r, const void* row) {                                         \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" turn ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                           \
                 : "r"(shared_address(row))                                                 \
                 : "memory");                                                               \
  }
BRRR_VX_MATRICES(load_matrices, "")
BRRR_VX_MATRICES(load_matrices_transposed, ".trans")
#undef BRRR_VX_MATRICES

// --- asynchronous copies -------------------------------------------------------------------------

// Copies 4, 8 or 16 bytes, aligned to their size, from global to shared memory; without `there` it
// writes zeros, and `from` must still be a valid address.
template <int bytes> BRRR_VX void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "n"(bytes),
                 "r"(there ? bytes : 0)
               : "memory");
}
// Waits for this thread's copies; those of other threads need a barrier as well.
BRRR_VX void await_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

}  // namespace brrr::vx

#endif  // BRRR_EMULATED
