// Products of float32 that are too small for the library: it has a block of threads for each 128 x
// 128 results or so, so that most of the card waits while a few blocks add up long sums. Here a
// block has few results, and its threads share the sums' terms.
#include "backends/cuda/small_gemm.h"

#include <limits>

#include "backends/cuda/device.h"
#include "core/device_kernel.h"

namespace brrr::cuda {

namespace {

// Element (i, k) of A is a[i * a_row + k * a_term], (k, j) of B b[j * b_col + k * b_term].
BRRR_DEVICE_STRUCT(SmallGemm, {
  const float *a, *b;
  float* c;
  long a_batch, b_batch, c_batch;
  int m, n, k, a_row, a_term, b_col, b_term, c_row;
});

// Of a block: its columns and threads, and the terms of one of its groups in a turn.
BRRR_DEVICE_FUNCTIONS(SizesText, constexpr int kCols = 32; constexpr int kThreads = 512;
                      constexpr int kEach = 16;);

// The order of a sum: each group of threads adds its terms from the first to the last, then the
// groups' sums are added from the first to the last. It is a function of the shape and the device.
constexpr DeviceKernel kernel{"small_gemm", SmallGemmText, kThreads, {SizesText, R"(
// A thread has 4 x 4 results, a group of threads all of the block's.
constexpr int kRows = N, kGroup = kRows * kCols / 16, kGroups = kThreads / kGroup;
constexpr int kTerms = kGroups * kEach;
using Four = Pack<float, 4>;

// What a thread brings of an operand that is W wide, kTerms terms at a time: of element i the terms
// k, k + kStep and so on. Where terms lie side by side, eight threads read eight of them, a whole
// sector of memory, and the 32 of a warp write to different banks.
template <int W> struct Side {
  static constexpr int kStep = kThreads / W, kMine = kTerms / kStep, kPitch = W + 4;
  float v[kMine];
  int k;
  bool there;
  const float* from;
  long step;
  float* to;

  __device__ __forceinline__ Side(const float* first, int row, int term, int width, float* shared) {
    const int at = threadIdx.x, i = term == 1 ? at / 8 % W : at % W;
    k = term == 1 ? at % 8 + at / (8 * W) * 8 : at / W;
    there = i < width;
    from = first + (long)i * row + (long)k * term;
    step = (long)kStep * term;
    to = shared + k * kPitch + i;
  }
  __device__ __forceinline__ void fetch(int terms) {
#pragma unroll
    for (int u = 0; u < kMine; ++u, from += step) {
      v[u] = there && k + u * kStep < terms ? *from : 0.0f;
    }
  }
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int u = 0; u < kMine; ++u) to[u * kStep * kPitch] = v[u];
  }
};

BLOCK_KERNEL(small_gemm, SmallGemm, kThreads) {
  DYNAMIC_SHARED(float, left);
  float* const right = left + kTerms * (kRows + 4);
  const unsigned across = (p.n + kCols - 1) / kCols, tiles = (p.m + kRows - 1) / kRows * across;
  const unsigned tile = blockIdx.x % tiles;
  const int top = tile / across * kRows, first = tile % across * kCols;
  const long batch = blockIdx.x / tiles;
  Side<kRows> a(p.a + batch * p.a_batch + (long)top * p.a_row, p.a_row, p.a_term, p.m - top, left);
  Side<kCols> b(p.b + batch * p.b_batch + (long)first * p.b_col, p.b_col, p.b_term, p.n - first,
                right);
  const int group = threadIdx.x / kGroup, at = threadIdx.x % kGroup;
  const int row = at / 8 * 4, col = at % 8 * 4;
  Four sum[4] = {};
  a.fetch(p.k);
  b.fetch(p.k);
  for (int rest = p.k; rest > 0; rest -= kTerms) {
    a.keep();
    b.keep();
    __syncthreads();
    a.fetch(rest - kTerms);  // Under way while these are multiplied.
    b.fetch(rest - kTerms);
    if (group * kEach < rest) {
      const float* f = left + group * kEach * a.kPitch + row;
      const float* g = right + group * kEach * b.kPitch + col;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const Four u = *(const Four*)(f + k * a.kPitch);
        const Four v = *(const Four*)(g + k * b.kPitch);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[r].v[c] = fma(f32(u.v[r]), f32(v.v[c]), f32(sum[r].v[c])).v;
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) *(Four*)(left + (group * kRows + row + r) * kCols + col) = sum[r];
  __syncthreads();
#pragma unroll
  for (int e = threadIdx.x; e < kRows * kCols; e += kThreads) {
    float total = left[e];
#pragma unroll
    for (int g = 1; g < kGroups; ++g) total += left[g * kRows * kCols + e];
    const int i = top + e / kCols, j = first + e % kCols;
    if (i < p.m && j < p.n) p.c[batch * p.c_batch + (long)i * p.c_row + j] = total;
  }
}
)"}};

int64_t tiles(const GemmShape& s, int64_t rows, int64_t cols) {
  return (s.m + rows - 1) / rows * ((s.n + cols - 1) / cols);
}

// The most rows a block with which all of the card has one.
int rows_of(const GemmShape& s) {
  for (const int rows : {64, 32}) {
    if (tiles(s, rows, kCols) >= device().properties.multiprocessors) return rows;
  }
  return 16;
}

}  // namespace

bool is_small(const GemmShape& s) {
  if (s.type != GemmShape::Float32 || s.tf32) return false;
  constexpr int64_t most = std::numeric_limits<int>::max();  // Offsets within a tile's operands.
  const int64_t a = (s.trans_a ? s.k : s.m) * s.lda, b = (s.trans_b ? s.n : s.k) * s.ldb;
  return a <= most && b <= most &&
         4 * s.batch * tiles(s, 128, 128) <= device().properties.multiprocessors;
}

void multiply_small(const GemmShape& s, const void* a, const void* b, void* c) {
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  const int rows = rows_of(s), lda = narrow(s.lda), ldb = narrow(s.ldb);
  const int64_t groups = kThreads * 16 / (rows * kCols), terms = groups * kEach;
  const int64_t operands = terms * (rows + 4 + kCols + 4), sums = groups * rows * kCols;
  run_kernel(kernel, {.n = rows},
             {.x = s.batch * tiles(s, rows, kCols), .shared_bytes = 4 * std::max(operands, sums)},
             SmallGemm{static_cast<const float*>(a), static_cast<const float*>(b),
                       static_cast<float*>(c), s.stride_a, s.stride_b, s.stride_c, narrow(s.m),
                       narrow(s.n), narrow(s.k), s.trans_a ? 1 : lda, s.trans_a ? lda : 1,
                       s.trans_b ? ldb : 1, s.trans_b ? 1 : ldb, narrow(s.ldc)});
}

}  // namespace brrr::cuda
