// What the kernels of programs with rows are written in: packs of elements in memory, folds across
// the lanes of a warp and the warps of a block.
#include "ops/program/cuda_rows.h"

namespace brrr::program {

const char kRowText[] = R"(
// N elements that are aligned as one piece of memory, or as pieces of 16 bytes.
template <class T, int N> BRRR_VX void take(T (&v)[N], const char* p) {
  constexpr int step = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int k = 0; k < N; k += step) {
    const Pack<T, step> raw = *(const Pack<T, step>*)(p + k * sizeof(T));
#pragma unroll
    for (int u = 0; u < step; ++u) v[k + u] = raw.v[u];
  }
}
template <class T, int N> BRRR_VX void give(char* p, const T (&v)[N]) {
  constexpr int step = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
  for (int k = 0; k < N; k += step) {
    Pack<T, step> raw;
#pragma unroll
    for (int u = 0; u < step; ++u) raw.v[u] = v[k + u];
    *(Pack<T, step>*)(p + k * sizeof(T)) = raw;
  }
}
// The same elements one by one, `stride` bytes behind each other.
template <class T, int N> BRRR_VX void take_each(T (&v)[N], const char* p, long stride) {
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = *(const T*)(p + k * stride);
}
template <class T, int N> BRRR_VX void give_each(char* p, long stride, const T (&v)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) *(T*)(p + k * stride) = v[k];
}
template <class T> BRRR_VX T* shared_row() {
  __shared__ T all[32];
  return all;
}
template <class T> BRRR_VX T* shared_square() {
  __shared__ T all[32 * 33];
  return all;
}
// What the lanes of a walker have, combined: the same bits in each lane, as the lower lane always
// comes first. All threads of the block take part.
template <int kLanes, class V, class C> BRRR_VX V across(V x, C combine) {
#pragma unroll
  for (int d = (kLanes < 32 ? kLanes : 32) / 2; d > 0; d /= 2) {
    const V other = V(shuffle_xor(x.v, d));
    x = threadIdx.x & d ? combine(other, x) : combine(x, other);
  }
  if constexpr (kLanes > 32) {
    constexpr int warps = kLanes > 32 ? kLanes / 32 : 1;  // NVRTC looks at what is not taken, too.
    auto* const partial = shared_row<decltype(V::v)>();
    __syncthreads();  // Its last use is over.
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x.v;
    __syncthreads();
    x = V(partial[threadIdx.x % warps]);
#pragma unroll
    for (int d = warps / 2; d > 0; d /= 2) {
      const V other = V(shuffle_xor(x.v, d));
      x = threadIdx.x & d ? combine(other, x) : combine(x, other);
    }
  }
  return x;
}
// What some slots have of each of some columns, combined, in the threads of slot 0: neighbouring
// lanes take the slots of a column.
template <int kSlots, int kColumns, class V, class C> BRRR_VX V down(V x, C combine) {
  if constexpr (kSlots > 1) {
    auto* const partial = shared_square<decltype(V::v)>();
    constexpr int step = kColumns + 1;
    const int column = threadIdx.x / kSlots, slot = threadIdx.x % kSlots;
    __syncthreads();  // Its last use is over.
    partial[threadIdx.x / kColumns * step + threadIdx.x % kColumns] = x.v;
    __syncthreads();
    x = across<kSlots>(V(partial[slot * step + column]), combine);
    __syncthreads();
    if (slot == 0) partial[column] = x.v;
    __syncthreads();
    x = V(partial[threadIdx.x % kColumns]);
  }
  return x;
}
)";

}  // namespace brrr::program
