// The device prelude, last part: what kernels are written with beside ops/vocabulary/vec_device.h.
// Under NVRTC only; the emulator has a text of its own for it.
#ifndef BRRR_EMULATED

// A kernel with one argument, the struct p. The threads of a KERNEL do not talk to each other,
// those of a BLOCK_KERNEL do.
#define KERNEL(name, Params, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Params p)
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

}  // namespace brrr::vx

#endif  // BRRR_EMULATED
