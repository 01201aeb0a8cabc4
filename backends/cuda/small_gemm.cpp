// Products of float32 that are too small for the library: it has a block of threads for each 128 x
// 128 results or so, so that most of the card waits while a few blocks add up long sums. Here a
// block has few results, and its threads share the sums' terms.
#include "backends/cuda/backend.h"

#include <limits>

#include "backends/cuda/device.h"
#include "core/device_kernel.h"

namespace brrr::cuda {

namespace {

// Rows of A and B are neighbours of their terms, or terms of their rows: line l of A begins at
// a[l * a_line].
BRRR_DEVICE_STRUCT(SmallGemm, {
  const float *a, *b;
  float* c;
  long a_batch, b_batch, c_batch;
  int m, n, k, a_line, b_line, c_row;
});

// A block has rows x cols results, a thread r x c of them, a group of threads all of the block's.
BRRR_DEVICE_STRUCT(Tile, { int rows, cols, r, c, group, groups; });
// The terms of a group in a turn. What a text is compiled for: a tile, whether the terms of A and
// of B are neighbours, whether what is copied at a time is 16 bytes.
BRRR_DEVICE_FUNCTIONS(TilesText, constexpr int kEach = 16;
                      constexpr Tile kTiles[] = {{16, 16, 4, 4, 16, 8},
                                                 {16, 16, 4, 4, 16, 16},
                                                 {16, 32, 8, 4, 16, 16},
                                                 {32, 32, 8, 4, 32, 4}};
                      constexpr int kAlongA = 4, kAlongB = 8, kWideA = 16, kWideB = 32;);
enum : int { Short, Long, Flat, Large };

// The order of a sum: each group of threads adds its terms from the first to the last, then the
// groups' sums are added from the first to the last. It is a function of the shape and the device.
constexpr char kText[] = R"(
constexpr Tile kTile = kTiles[N % 4];
constexpr int kThreads = kTile.group * kTile.groups, kTerms = kTile.groups * kEach;
using Four = Pack<float, 4>;

// The terms of an operand for a turn in shared memory, as they lie in memory: kAlong if those of a
// row are neighbours. It is W wide, of which a thread has R.
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
  // Which of the block's a thread's r-th is: lanes read different banks.
  __device__ static constexpr int place(int thread, int r) {
    return kAlong ? thread + r * kAcross : (r / 4 * kAcross + thread) * 4 + r % 4;
  }
  // A thread's, of the four terms from k on.
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
  constexpr int kTurn = SideA::kFloats + SideB::kFloats, kResults = kTile.rows * kTile.cols;
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
  for (int begin = 0; begin < p.k; begin += kTerms, now = kTurn - now) {
    await_copies();
    __syncthreads();
    float* const next = shared + (kTurn - now);  // Under way while these are multiplied.
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

// Of a block: two turns' operands, then the groups' sums.
int64_t shared_bytes(const GemmShape& s, const Tile& t) {
  const int64_t terms = t.groups * kEach;
  const auto floats = [&](bool along, int64_t width) {
    return along ? width * (terms + 4) : terms * (width + 4);
  };
  const int64_t turn = floats(!s.trans_a, t.rows) + floats(s.trans_b, t.cols);
  const int64_t sums = int64_t{t.groups} * t.rows * t.cols;
  return 4 * std::max(2 * turn, sums);
}

// Small ones where they do not fill the card; those of most threads for long sums. Measured on an
// H200 (tests/bench/FIGURES.md). Blocks of compute capability 8.6, 8.9 and 12.0 have 99 KB: too few
// for a Flat one.
int tile_of(const GemmShape& s) {
  const int64_t card = device().properties.multiprocessors, small = tiles(s, Long);
  if (small <= card) return s.k > 128 ? Long : Short;
  const bool fits = shared_bytes(s, kTiles[Flat]) <= device().properties.shared_bytes;
  if (tiles(s, Flat) <= card && s.k > 256 && fits) return Flat;
  return small <= 3 * card ? Short : Large;
}

// Whether lines of such a length can be copied 16 bytes at a time.
bool is_wide(const void* p, int64_t length, int64_t line, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && (length | line | stride) % 4 == 0;
}

}  // namespace

bool is_small(const GemmShape& s) {
  if (s.type != GemmShape::Float32 || s.tf32) return false;
  constexpr int64_t most = std::numeric_limits<int>::max();  // Offsets within a tile's operands.
  // From so many multiplications on the library's tiles, of which each has parts of the terms, are
  // as many as the card takes.
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
