// float32 products that are too small for the library: it uses one thread block per 128 x 128
// results or so, so most of the GPU idles while a few blocks add up long sums. Here a block has a
// small tile, and its groups of threads split the terms of each sum (split-k within the block).
#include "backends/cuda/backend.h"

#include <limits>

#include "backends/cuda/device.h"
#include "core/device_kernel.h"

namespace brrr::cuda {

namespace {

// A and B are each contiguous along k (a line is a row of A, a column of B) or along m or n (a line
// is a term). Line l of A begins at a[l * a_line].
BRRR_DEVICE_STRUCT(SmallGemm, {
  const float *a, *b;
  float* c;
  long a_batch, b_batch, c_batch;
  int m, n, k, a_line, b_line, c_row;
});

// A block has rows x cols results and `groups` groups of threads. Each group computes all results
// from its share of the terms, r x c results per thread.
BRRR_DEVICE_STRUCT(Tile, { int rows, cols, r, c, group, groups; });
// kEach: terms of a group per iteration. N: a tile's index plus flags, set where A or B is
// contiguous along k (kAlong) or copied 16 bytes at a time, not 4 (kWide).
BRRR_DEVICE_FUNCTIONS(TilesText, constexpr int kEach = 16;
                      constexpr Tile kTiles[] = {{16, 16, 4, 4, 16, 8},
                                                 {16, 16, 4, 4, 16, 16},
                                                 {16, 32, 8, 4, 16, 16},
                                                 {32, 32, 8, 4, 32, 4}};
                      constexpr int kAlongA = 4, kAlongB = 8, kWideA = 16, kWideB = 32;);
enum : int { Short, Long, Flat, Large };

// The order of a sum: each group adds its terms in the order of k, then the groups' partial sums
// are added in order. It is a function of the shape and the device.
constexpr char kText[] = R"(
constexpr Tile kTile = kTiles[N % 4];
constexpr int kThreads = kTile.group * kTile.groups, kTerms = kTile.groups * kEach;
using Four = Pack<float, 4>;

// An operand's part for one iteration, in shared memory with its layout in global memory: kAlong if
// it is contiguous along k. It is W rows (columns, for B) wide, of which a thread uses R.
template <bool kAlong, int W, int R, int kBytes> struct Side {
  static constexpr int kLength = kAlong ? kTerms : W, kLines = kAlong ? W : kTerms;
  static constexpr int kPitch = kLength + 4, kFloats = kLines * kPitch, kMany = kBytes / 4;
  static constexpr int kAcross = W / R;
  const float* from;
  long line;
  int width;

  __device__ __forceinline__ void fetch(float* to, int begin, int terms) const {
#pragma unroll(kMany)
    for (int c = threadIdx.x; c < kLength * kLines / kMany; c += kThreads) {
      const int l = c / (kLength / kMany), at = c % (kLength / kMany) * kMany;
      const int i = kAlong ? l : at, k = begin + (kAlong ? at : l);
      const bool there = i < width && k < terms;
      const long place = kAlong ? i * line + k : k * line + i;
      copy_async<kBytes>(to + l * kPitch + at, there ? from + place : from, there);
    }
  }
  // The row (column) in the block that is a thread's r-th: free of bank conflicts.
  __device__ static constexpr int place(int thread, int r) {
    return kAlong ? thread + r * kAcross : (r / 4 * kAcross + thread) * 4 + r % 4;
  }
  // Reads the thread's elements of the four terms from k on.
  __device__ static __forceinline__ void take(float (&v)[4][R], const float* of, int thread, int k) {
#pragma unroll
    for (int r = 0; r < (kAlong ? R : 4); ++r) {
#pragma unroll
      for (int j = 0; j < (kAlong ? 1 : R / 4); ++j) {
        const Four x = *(const Four*)(of + (kAlong ? place(thread, r) * kPitch + k
                                                   : (k + r) * kPitch + place(thread, j * 4)));
#pragma unroll
        for (int q = 0; q < 4; ++q) (kAlong ? v[q][r] : v[r][j * 4 + q]) = x.v[q];
      }
    }
  }
};
using SideA = Side<(N & kAlongA) != 0, kTile.rows, kTile.r, N & kWideA ? 16 : 4>;
using SideB = Side<(N & kAlongB) != 0, kTile.cols, kTile.c, N & kWideB ? 16 : 4>;

BLOCK_KERNEL(small_gemm, SmallGemm, kThreads) {
  DYNAMIC_SHARED(float, shared);
  constexpr int kBuffer = SideA::kFloats + SideB::kFloats, kResults = kTile.rows * kTile.cols;
  const unsigned across = (p.n + kTile.cols - 1) / kTile.cols;
  const unsigned tiles = (p.m + kTile.rows - 1) / kTile.rows * across, tile = blockIdx.x % tiles;
  const int top = tile / across * kTile.rows, first = tile % across * kTile.cols;
  const long batch = blockIdx.x / tiles;
  const SideA a{p.a + batch * p.a_batch + top * (N & kAlongA ? (long)p.a_line : 1), p.a_line,
                p.m - top};
  const SideB b{p.b + batch * p.b_batch + first * (N & kAlongB ? (long)p.b_line : 1), p.b_line,
                p.n - first};
  const int group = threadIdx.x / kTile.group, at = threadIdx.x % kTile.group;
  const int row = at / SideB::kAcross, col = at % SideB::kAcross;
  float sum[kTile.r][kTile.c] = {};
  a.fetch(shared, 0, p.k);
  b.fetch(shared + SideA::kFloats, 0, p.k);
  int now = 0;
  for (int begin = 0; begin < p.k; begin += kTerms, now = kBuffer - now) {
    await_copies();
    __syncthreads();
    float* const next = shared + (kBuffer - now);  // Copied while the current part is multiplied.
    if (begin + kTerms < p.k) {
      a.fetch(next, begin + kTerms, p.k);
      b.fetch(next + SideA::kFloats, begin + kTerms, p.k);
    }
    if (begin + group * kEach >= p.k) continue;
#pragma unroll
    for (int k = 0; k < kEach; k += 4) {
      float u[4][kTile.r], v[4][kTile.c];
      SideA::take(u, shared + now, row, group * kEach + k);
      SideB::take(v, shared + now + SideA::kFloats, col, group * kEach + k);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int r = 0; r < kTile.r; ++r) {
#pragma unroll
          for (int c = 0; c < kTile.c; ++c) {
            sum[r][c] = fma(f32(u[q][r]), f32(v[q][c]), f32(sum[r][c])).v;
          }
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kTile.r; ++r) {
#pragma unroll
    for (int c = 0; c < kTile.c; ++c) {
      const int i = SideA::place(row, r), j = SideB::place(col, c);
      shared[group * kResults + i * kTile.cols + j] = sum[r][c];
    }
  }
  __syncthreads();
#pragma unroll
  for (int e = threadIdx.x; e < kResults; e += kThreads) {
    float total = shared[e];
#pragma unroll
    for (int g = 1; g < kTile.groups; ++g) total += shared[g * kResults + e];
    const int i = top + e / kTile.cols, j = first + e % kTile.cols;
    if (i < p.m && j < p.n) p.c[batch * p.c_batch + (long)i * p.c_row + j] = total;
  }
}
)";
constexpr DeviceKernel kernels[] = {
    {"small_gemm", SmallGemmText, 128, {TileText, TilesText, kText}},
    {"small_gemm", SmallGemmText, 256, {TileText, TilesText, kText}}};

int64_t tiles(const GemmShape& s, int64_t rows, int64_t cols) {
  return (s.m + rows - 1) / rows * ((s.n + cols - 1) / cols);
}
int64_t tiles(const GemmShape& s, int tile) {
  return s.batch * tiles(s, kTiles[tile].rows, kTiles[tile].cols);
}

// Of a block: the double-buffered operands, later reused for the groups' sums.
int64_t shared_bytes(const GemmShape& s, const Tile& t) {
  const int64_t terms = t.groups * kEach;
  const auto floats = [&](bool along, int64_t width) {
    return along ? width * (terms + 4) : terms * (width + 4);
  };
  const int64_t buffer = floats(!s.trans_a, t.rows) + floats(s.trans_b, t.cols);
  const int64_t sums = int64_t{t.groups} * t.rows * t.cols;
  return 4 * std::max(2 * buffer, sums);
}

// Small tiles where they do not fill the GPU; more threads per block for long sums. Measured on an
// H200 (tests/bench/FIGURES.md). Compute capabilities 8.6, 8.9 and 12.0 have 99 KB of shared memory
// per block, too little for a Flat tile.
int tile_of(const GemmShape& s) {
  const int64_t card = device().properties.multiprocessors, small = tiles(s, Long);
  if (small <= card) return s.k > 128 ? Long : Short;
  const bool fits = shared_bytes(s, kTiles[Flat]) <= device().properties.shared_bytes;
  if (tiles(s, Flat) <= card && s.k > 256 && fits) return Flat;
  return small <= 3 * card ? Short : Large;
}

// Whether lines of this length and pitch can be copied 16 bytes at a time.
bool is_wide(const void* p, int64_t length, int64_t line, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && (length | line | stride) % 4 == 0;
}

}  // namespace

bool is_small(const GemmShape& s) {
  if (s.type != GemmShape::Float32 || s.tf32) return false;
  constexpr int64_t most = std::numeric_limits<int>::max();  // Offsets in a matrix are 32-bit.
  // Above this many multiplications the library splits k over enough tiles to fill the GPU.
  if (s.batch * s.m * s.n * s.k > int64_t{1} << 26) return false;
  const int64_t a = (s.trans_a ? s.k : s.m) * s.lda, b = (s.trans_b ? s.n : s.k) * s.ldb;
  return a <= most && b <= most &&
         4 * s.batch * tiles(s, 128, 128) <= device().properties.multiprocessors;
}

void multiply_small(const GemmShape& s, const void* a, const void* b, void* c) {
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  const int which = tile_of(s);
  const Tile& t = kTiles[which];
  const bool wide_a = is_wide(a, s.trans_a ? s.m : s.k, s.lda, s.stride_a);
  const bool wide_b = is_wide(b, s.trans_b ? s.k : s.n, s.ldb, s.stride_b);
  const int n =
      which + !s.trans_a * kAlongA + s.trans_b * kAlongB + wide_a * kWideA + wide_b * kWideB;
  run_kernel(kernels[t.group * t.groups == 256], {.n = n},
             {.x = tiles(s, which), .shared_bytes = shared_bytes(s, t)},
             SmallGemm{static_cast<const float*>(a), static_cast<const float*>(b),
                       static_cast<float*>(c), s.stride_a, s.stride_b, s.stride_c, narrow(s.m),
                       narrow(s.n), narrow(s.k), narrow(s.lda), narrow(s.ldb), narrow(s.ldc)});
}

}  // namespace brrr::cuda
