// The device prelude, last part: what kernels are written with beside ops/vocabulary/vec_device.h.
// Under NVRTC only; the emulator has a text of its own for it.
#ifndef BRRR_EMULATED

// A kernel with one argument, the struct p, and of so many threads; a second number is of blocks
// that a multiprocessor is to have registers for. The threads of a KERNEL do not talk to each
// other, those of a BLOCK_KERNEL do.
#define KERNEL(name, Params, ...) \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Params p)
#define BLOCK_KERNEL KERNEL

// T* name: the launch's dynamic shared memory.
#define DYNAMIC_SHARED(T, name)                                \
  extern __shared__ __align__(16) unsigned char brrr_shared[]; \
  T* const name = reinterpret_cast<T*>(brrr_shared)

namespace brrr::vx {

// --- a warp's 32 threads, all of which take part -------------------------------------------------

template <class T> BRRR_VX T shuffle(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> BRRR_VX T shuffle_xor(T x, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, x, lane_mask);
}
template <class T> BRRR_VX T shuffle_down(T x, unsigned delta) {
  return __shfl_down_sync(0xffffffffu, x, delta);
}
// A macro, because CUDA still declares a function ballot().
#define ballot(yes) __ballot_sync(0xffffffffu, yes)

// c[16, 8] += a[16, 16] b[16, 8] with the elements spread over the warp as PTX has them. Volatile:
// all of the warp has to be there, so a compiler must not move it to where the result is used.
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
// Four matrices of 8 rows of 8 16-bit elements in shared memory; lane l gives row l % 8 of matrix
// l / 8 and gets of each matrix two neighbours, as mma takes them: in row l / 4, or, turned, in
// column l / 4.
#define BRRR_VX_MATRICES(name, turn)                                                        \
  BRRR_VX void name(unsigned* r, const void* row) {                                         \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" turn ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                           \
                 : "r"(shared_address(row))                                                 \
                 : "memory");                                                               \
  }
BRRR_VX_MATRICES(load_matrices, "")
BRRR_VX_MATRICES(load_matrices_turned, ".trans")
#undef BRRR_VX_MATRICES

// --- copies on their way -------------------------------------------------------------------------

// 4, 8 or 16 bytes, aligned to that, from global to shared memory, or zeros where there are none;
// `from` is an address of an operand then, too.
template <int bytes> BRRR_VX void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "n"(bytes),
                 "r"(there ? bytes : 0)
               : "memory");
}
// This thread's copies have arrived; those of others, after a barrier.
BRRR_VX void await_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

}  // namespace brrr::vx

#endif  // BRRR_EMULATED
