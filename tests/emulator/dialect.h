// The kernel dialect for the CPU. This text precedes each program, after interface.h. As much as
// possible is in the emulator itself, so that it is not compiled again with each kernel.
#define BRRR_EMULATED 1

extern "C" {
#define BRRR_SECTION_BOUND extern __attribute__((weak, visibility("hidden")))
BRRR_SECTION_BOUND const brrr_emulator::Kernel* const __start_emulated_kernels[];
BRRR_SECTION_BOUND const brrr_emulator::Kernel* const __stop_emulated_kernels[];
BRRR_SECTION_BOUND char __start_emulated_shared[];
BRRR_SECTION_BOUND char __stop_emulated_shared[];
static brrr_emulator::State brrr_emulated_state;
extern __attribute__((visibility("default"))) const brrr_emulator::Program brrr_emulated_program = {
    &brrr_emulated_state, __start_emulated_kernels, __stop_emulated_kernels,
    __start_emulated_shared, __stop_emulated_shared};
}

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static __attribute__((section("emulated_shared")))
#define threadIdx brrr_emulated_state.thread
#define blockIdx brrr_emulated_state.block
#define blockDim brrr_emulated_state.threads
#define gridDim brrr_emulated_state.blocks
#define DYNAMIC_SHARED(T, name) T* const name = (T*)brrr_emulated_state.shared

// The section holds pointers to kernels, not kernels, which a compiler may separate by padding.
#define BRRR_EMULATED_KERNEL(name, Params, threads, loop, thread)                           \
  static const brrr_emulator::Kernel name##_kernel = {#name, threads, sizeof(Params), loop, \
                                                      thread};                              \
  __attribute__((section("emulated_kernels"),                                               \
                 used)) static const brrr_emulator::Kernel* const name##_entry = &name##_kernel;

#define KERNEL(name, Params, threads, ...)                                     \
  static void name(const Params& p);                                           \
  static void name##_loop(const void* params, unsigned first, unsigned step) { \
    const brrr_emulator::Index size = blockDim;                                \
    const unsigned row = size.x, slice = row * size.y, all = slice * size.z;   \
    for (unsigned i = 0, t = first; i < all; ++i) {                            \
      if (slice == row && size.z == 1) {                                       \
        threadIdx.x = t;                                                       \
      } else {                                                                 \
        threadIdx = {t % row, t % slice / row, t / slice};                     \
      }                                                                        \
      name(*(const Params*)params);                                            \
      t += step;                                                               \
      if (t >= all) t -= all;                                                  \
    }                                                                          \
  }                                                                            \
  BRRR_EMULATED_KERNEL(name, Params, threads, name##_loop, nullptr)            \
  static void name(const Params& p)

#define BLOCK_KERNEL(name, Params, threads, ...)                                  \
  static void name(const Params& p);                                              \
  static void name##_thread(const void* params) { name(*(const Params*)params); } \
  BRRR_EMULATED_KERNEL(name, Params, threads, nullptr, name##_thread)             \
  static void name(const Params& p)

// An unnamed namespace around the program (compile.cpp closes it): its names are internal, and
// static variables of templates are not in COMDAT groups, which cannot share a section with others.
namespace {

__forceinline__ void __syncthreads(int line = __builtin_LINE()) {
  brrr_emulated_state.runtime->block_barrier(line);
}
__forceinline__ void __syncwarp(int line = __builtin_LINE()) {
  brrr_emulated_state.runtime->warp_barrier(line);
}

namespace brrr::vx {

#define BRRR_LINE int line = __builtin_LINE()
__forceinline__ unsigned emulated_lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
#define BRRR_EMULATED_SHUFFLES(T)                                                                 \
  __forceinline__ T shuffle(T x, int lane, BRRR_LINE) {                                           \
    return *(const T*)brrr_emulated_state.runtime->exchange(&x, sizeof x, line)[lane & 31].bytes; \
  }                                                                                               \
  __forceinline__ T shuffle_xor(T x, int lane_mask, BRRR_LINE) {                                  \
    return shuffle(x, emulated_lane() ^ lane_mask, line);                                         \
  }                                                                                               \
  __forceinline__ T shuffle_down(T x, unsigned delta, BRRR_LINE) {                                \
    const unsigned lane = emulated_lane();                                                        \
    return shuffle(x, lane + delta < 32 ? lane + delta : lane, line);                             \
  }
BRRR_EMULATED_SHUFFLES(float)
BRRR_EMULATED_SHUFFLES(double)
BRRR_EMULATED_SHUFFLES(int)
BRRR_EMULATED_SHUFFLES(unsigned)
BRRR_EMULATED_SHUFFLES(long)
BRRR_EMULATED_SHUFFLES(unsigned long)

__forceinline__ unsigned ballot(bool yes, BRRR_LINE) {
  const brrr_emulator::Slot* votes = brrr_emulated_state.runtime->exchange(&yes, 1, line);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= unsigned(votes[i].bytes[0]) << i;
  return bits;
}
__forceinline__ void mma_bf16(float* c, const unsigned* a, const unsigned* b, BRRR_LINE) {
  brrr_emulated_state.runtime->multiply_bf16(c, a, b, line);
}
__forceinline__ void mma_f16(float* c, const unsigned* a, const unsigned* b, BRRR_LINE) {
  brrr_emulated_state.runtime->multiply_f16(c, a, b, line);
}
template <bool transposed>
__forceinline__ void emulated_matrices(unsigned* r, const void* row, int line) {
  const brrr_emulator::Slot* const rows = brrr_emulated_state.runtime->exchange(row, 16, line);
  const unsigned far = emulated_lane() / 4, near = emulated_lane() % 4 * 2;
  for (int k = 0; k < 4; ++k) {
    const auto element = [&](unsigned at, unsigned column) {
      return unsigned(((const unsigned short*)rows[k * 8 + at].bytes)[column]);
    };
    r[k] = transposed ? element(near, far) | element(near + 1, far) << 16
                      : element(far, near) | element(far, near + 1) << 16;
  }
}
__forceinline__ void load_matrices(unsigned* r, const void* row, BRRR_LINE) {
  emulated_matrices<false>(r, row, line);
}
__forceinline__ void load_matrices_transposed(unsigned* r, const void* row, BRRR_LINE) {
  emulated_matrices<true>(r, row, line);
}

template <int bytes> __forceinline__ void copy_async(void* to, const void* from, bool there) {
  if (there)
    __builtin_memcpy(to, from, bytes);
  else
    __builtin_memset(to, 0, bytes);
}
__forceinline__ void await_copies() {}

}  // namespace brrr::vx
