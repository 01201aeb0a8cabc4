#pragma once
// Attention on a GPU: the arguments of its kernels, and the text that they share: products of a
// warp's tiles and what becomes of a tile of scores.
//
// A block has 4 warps, each with 16 rows of the block's 64, and meets tiles of kCols columns that
// all warps read from shared memory. Forward and dq have queries as rows and keys as columns, dk
// and dv keys as rows and queries as columns. Float32 multiplies in registers, 4 rows and an
// eighth of the columns a thread; 16-bit floats by mma. Both are written against one view of a
// thread's part of a tile, row_of and col_of. The order of sums is a function of the shape and
// dtype alone.

#include "core/device_kernel.h"

namespace brrr {

/// `head` are strides of the leading dims, `sizes` their sizes; all in elements. `max` is not the
/// row's on a GPU but what is added to scores times log2 e to make logarithms of weights; `unit`
/// is scale times log2 e.
BRRR_DEVICE_STRUCT(AttentionArguments, {
  struct Matrix {
    const char* data;
    long row, col, head[6];
  };
  Matrix q, k, v, mask, g, out, to, dk, dv;
  int sizes[6], dims, queries, keys, width, depth, causal, bool_mask, packed;
  int to_packs, dk_packs, dv_packs;
  float scale, unit;
  long limit;
  float kept;
  const char* key;
  long key_stride;
  float *max, *sum, *along;
});

/// What kernels are compiled for, in Variant::n: the columns of a tile and the width that q, k and
/// v are padded to, a multiple of 32, so that rows of shared memory lie 4 words apart mod 16. In
/// bits() the tile with most code is the largest, which is the one that every test run compiles.
struct AttentionTile {
  int width, cols;
  bool dropout, masked, half;
  int bits() const { return cols | width << 8 | dropout << 16 | masked << 17 | half << 18; }
};

inline constexpr int kAttentionRows = 64;

inline constexpr char kAttentionTiles[] = R"(
constexpr int kWidth = N >> 8 & 255, kCols = N & 255, kRows = 64, kThreads = 128;
constexpr bool kDropout = N >> 16 & 1, kMasked = N >> 17 & 1, kHalf = N >> 18 & 1;
constexpr bool kMma = sizeof(T) == 2;
constexpr int kStride = kWidth + 16 / (int)sizeof(T);  // Of a row of shared memory.

// Blocks side by side on a multiprocessor, as far as registers allow without some being kept in
// memory; for capability 10 compilers take more of them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kSpared = kMma;
#else
constexpr int kSpared = 0;
#endif
constexpr int kExtras = (kWidth > 64) + kMasked + 2 * kDropout;
constexpr int kKeysBlocks = kExtras ? 1 : 3 - kSpared;
constexpr int kBlocks = kExtras > kMma ? 1 : kExtras ? 3 : 3 + kMma - kSpared;

// --- a thread's part of a warp's tile ------------------------------------------------------------

// 16 rows, n columns.
template <int n> struct Part { float v[n / 2]; };
constexpr int kOwn = kMma ? 2 : 4;    // Rows that a thread has elements of,
constexpr int kShare = kMma ? 4 : 8;  // and threads that have elements of one row.
constexpr int kOwnCols = kCols / kShare;
constexpr int kPack = kMma ? 2 : 4;  // Columns side by side of a thread's results,
constexpr int kPacks = kWidth / kShare / kPack;

BRRR_VX int lane() { return threadIdx.x % 32; }
BRRR_VX int first_row() { return threadIdx.x / 32 * 16; }
BRRR_VX int row_of(int r) { return r * (16 / kOwn) + lane() / kShare; }
BRRR_VX int col_of(int c) {
  return kMma ? c / 2 * 8 + lane() % 4 * 2 + c % 2 : c * 8 + lane() % 8;
}
BRRR_VX constexpr int at(int r, int c) { return kMma ? c / 2 * 4 + r * 2 + c % 2 : c * 4 + r; }
BRRR_VX int pack_col(int q) { return (q * kShare + lane() % kShare) * kPack; }
BRRR_VX constexpr int pack_at(int r, int q, int e) {
  return kMma ? q * 4 + r * 2 + e : (4 * q + e) * 4 + r;
}

// Of a row's threads together; all get the same bits.
BRRR_VX f32 row_sum(f32 x) {
#pragma unroll
  for (int m = 1; m < kShare; m *= 2) x += shuffle_xor(x.v, m);
  return x;
}
// As larger(): not a NaN if there is a number.
BRRR_VX f32 top_of(f32 a, float b) { return f32(BRRR_VX_LIBM(fmaxf)(a.v, b)); }
BRRR_VX f32 row_max(f32 x) {
#pragma unroll
  for (int m = 1; m < kShare; m *= 2) x = top_of(x, shuffle_xor(x.v, m));
  return x;
}

// --- products ------------------------------------------------------------------------------------

BRRR_VX void mma(float* c, const unsigned* a, const unsigned* b) {
  if constexpr (kHalf) mma_f16(c, a, b);
  else mma_bf16(c, a, b);
}
// Two numbers as 16-bit floats, `low` the one at the lower address.
BRRR_VX unsigned pair(float low, float high) {
#ifdef BRRR_EMULATED
  if (kHalf) return f32_to_f16(f32(low)).v | (unsigned)f32_to_f16(f32(high)).v << 16;
  return f32_to_bf16(f32(low)).v | (unsigned)f32_to_bf16(f32(high)).v << 16;
#else
  unsigned both;
  if (kHalf) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#endif
}
BRRR_VX float fused(float a, float b, float c) { return fma(f32(a), f32(b), f32(c)).v; }

// s = a b^T: 16 rows of a, kCols of b.
BRRR_VX void multiply(Part<kCols>& s, const T* a, const T* b) {
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) s.v[i] = 0;
  if constexpr (kMma) {
    a += lane() % 16 * kStride + lane() / 16 * 8;
    b += (lane() % 8 + lane() / 16 * 8) * kStride + lane() / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kWidth; k += 16) {
      unsigned fa[4], fb[4];
      load_matrices(fa, a + k);
#pragma unroll
      for (int j = 0; j < kCols / 16; ++j) {
        load_matrices(fb, b + j * 16 * kStride + k);
        mma(s.v + 8 * j, fa, fb);
        mma(s.v + 8 * j + 4, fa, fb + 2);
      }
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < kWidth; k += 4) {
      Pack<float, 4> fa[kOwn];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) fa[r] = *(const Pack<float, 4>*)(a + row_of(r) * kStride + k);
#pragma unroll
      for (int c = 0; c < kOwnCols; ++c) {
        const Pack<float, 4> fb = *(const Pack<float, 4>*)(b + col_of(c) * kStride + k);
#pragma unroll
        for (int r = 0; r < kOwn; ++r) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s.v[at(r, c)] = fused(fa[r].v[e], fb.v[e], s.v[at(r, c)]);
        }
      }
    }
  }
}

// Where float32 weights are passed from the threads that made them to those that multiply by them.
constexpr int kRoomStride = kCols + 8;
constexpr int kRoom = kMma ? 0 : kRows * kRoomStride;

// c += s b: kCols rows of b.
BRRR_VX void accumulate(Part<kWidth>& c, const Part<kCols>& s, const T* b, float* room) {
  if constexpr (kMma) {
    b += lane() % 16 * kStride + lane() / 16 * 8;
#pragma unroll
    for (int k = 0; k < kCols; k += 16) {
      const float *left = s.v + k / 2, *right = left + 4;
      const unsigned fa[4] = {pair(left[0], left[1]), pair(left[2], left[3]),
                              pair(right[0], right[1]), pair(right[2], right[3])};
#pragma unroll
      for (int q = 0; q < kWidth / 16; ++q) {
        unsigned fb[4];
        load_matrices_turned(fb, b + k * kStride + q * 16);
        mma(c.v + 8 * q, fa, fb);
        mma(c.v + 8 * q + 4, fa, fb + 2);
      }
    }
  } else {
    room += first_row() * kRoomStride;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
#pragma unroll
      for (int j = 0; j < kOwnCols; ++j) room[row_of(r) * kRoomStride + col_of(j)] = s.v[at(r, j)];
    }
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < kCols; k += 4) {
      Pack<float, 4> fa[kOwn];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        fa[r] = *(const Pack<float, 4>*)(room + row_of(r) * kRoomStride + k);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int q = 0; q < kPacks; ++q) {
          const Pack<float, 4> fb = *(const Pack<float, 4>*)(b + (k + e) * kStride + pack_col(q));
#pragma unroll
          for (int r = 0; r < kOwn; ++r) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
              c.v[pack_at(r, q, x)] = fused(fa[r].v[e], fb.v[x], c.v[pack_at(r, q, x)]);
            }
          }
        }
      }
    }
  }
}

// --- tiles and memory ----------------------------------------------------------------------------

using Matrix = AttentionArguments::Matrix;

template <class E>
BRRR_VX const E* of_head(const AttentionArguments& p, const Matrix& m, unsigned head) {
  long at = 0;
  for (int d = p.dims - 1; d > 0; --d) {
    at += (long)(head % (unsigned)p.sizes[d]) * m.head[d];
    head /= (unsigned)p.sizes[d];
  }
  return (const E*)m.data + at + (long)head * m.head[0];
}

// Rows [first, first + rows) of a matrix of `end` rows into shared memory, zeros beyond its ends.
// What is copied in packs is there after await_copies().
template <int rows>
BRRR_VX void load_tile(T* to, const T* from, const Matrix& m, int first, int end, int columns,
                       bool packed) {
  constexpr int each = 16 / sizeof(T), packs = kWidth / each, step = kThreads / packs;
  const int mine = threadIdx.x / packs, at = threadIdx.x % packs * each;
  if (mine >= step) return;
  const T* p = from + (first + mine) * m.row + at;
  to += mine * kStride + at;
  if (packed) {
#pragma unroll
    for (int k = 0; k < rows; k += step, p += step * m.row) {
      if (rows % step != 0 && k + mine >= rows) break;
      const bool there = first + k + mine < end && at < columns;
      copy_async<16>(to + k * kStride, there ? p : from, there);
    }
    return;
  }
#pragma unroll 1
  for (int row = mine; row < rows; row += step, p += step * m.row, to += step * kStride) {
    Pack<T, each> x = {};
#pragma unroll
    for (int e = 0; e < each; ++e) {
      if (first + row < end && at + e < columns) x.v[e] = p[e];
    }
    *(Pack<T, each>*)to = x;
  }
}

// Tiles of columns, two matrices' at a time. Those of 16-bit floats are on their way while the ones
// before are multiplied.
constexpr int kStages = kMma ? 2 : 1;
constexpr int kTiles = 2 * kCols * kStride, kStage = kTiles + 8 * kCols / (int)sizeof(T);
template <bool turned> struct Columns {
  const AttentionArguments& p;
  const Matrix &a, &b;
  const T *from_a, *from_b;
  T* room;  // For each stage tiles of a and b; for queries their p.max and p.along besides.
  unsigned head;

  __device__ __forceinline__ T* stage(int col) const {
    return kStages == 1 ? room : room + col / kCols % 2 * kStage;
  }
  __device__ __forceinline__ void start(int col) const {
    T* const to = stage(col);
    const int rows = turned ? p.queries : p.keys;
    load_tile<kCols>(to, from_a, a, col, rows, p.width, p.packed);
    load_tile<kCols>(to + kCols * kStride, from_b, b, col, rows, p.depth, p.packed);
    if (!turned || threadIdx.x >= 2 * kCols) return;
    const int i = col + threadIdx.x % kCols;
    copy_async<4>((float*)(to + kTiles) + threadIdx.x,
                  (threadIdx.x < kCols ? p.max : p.along) + ((long)head * rows + i), i < rows);
  }
  __device__ __forceinline__ void begin(int col, int end) const {
    if (kStages == 2 && col < end) start(col);
  }
  // The tiles at `col`, whose copies were started if there is another stage; those before are no
  // longer needed.
  __device__ __forceinline__ const T* next(int col, int end) const {
    if (kStages == 1) {
      __syncthreads();
      start(col);
    }
    await_copies();
    __syncthreads();
    if (kStages == 2) begin(col + kCols, end);
    return stage(col);
  }
};

// The warp's rows from `first` on of a matrix, each times its factor. `packs`: kPack elements at a
// time can be written.
BRRR_VX void store_tile(const AttentionArguments& p, const Matrix& m, bool packs, unsigned head,
                        const Part<kWidth>& c, const float* factor, int first, int end,
                        int columns) {
  T* const matrix = (T*)of_head<T>(p, m, head);
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const int row = first + row_of(r);
    if (row >= end) continue;
    T* const to = matrix + row * m.row;
#pragma unroll
    for (int q = 0; q < kPacks; ++q) {
      const int col = pack_col(q);
      Pack<T, kPack> x;
#pragma unroll
      for (int e = 0; e < kPack; ++e) put(x.v + e, f32(c.v[pack_at(r, q, e)] * factor[r]));
      if (packs) {
        if (col < columns) *(Pack<T, kPack>*)(to + col) = x;
      } else {
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          if (col + e < columns) to[col + e] = x.v[e];
        }
      }
    }
  }
}

// --- scores --------------------------------------------------------------------------------------

// What a head's scores are modified by.
struct Modifiers {
  const char* mask;
  unsigned long seed, number, element;

  __device__ __forceinline__ Modifiers(const AttentionArguments& p, unsigned head)
      : element((unsigned long)head * p.queries * p.keys) {
    if (kMasked) {
      mask = p.bool_mask ? of_head<char>(p, p.mask, head)
                         : (const char*)of_head<float>(p, p.mask, head);
    }
    if (kDropout) {
      seed = ((const long*)p.key)[0];
      number = ((const long*)p.key)[p.key_stride];
    }
  }
};

// What is added to a score.
BRRR_VX float mask_of(const AttentionArguments& p, const Modifiers& by, int query, int key) {
  const long at = query * p.mask.row + key * p.mask.col;
  if (!p.bool_mask) return ((const float*)by.mask)[at];
  return mask_term<f32>(ne(i32(by.mask[at]), i32(0))).v;
}
// Scores are kept times log2 e, as power() takes them.
constexpr float kUnit = 1.44269504f;
// Scores plus `more(r, c)` from products: the warp's rows from `row` on, columns from `col` on,
// where `turned` keys and queries. Columns beyond the end have no weight, whatever the row holds.
template <bool turned, class More>
BRRR_VX void to_scores(const AttentionArguments& p, const Modifiers& by, Part<kCols>& s, int row,
                       int col, More more) {
  const int columns = turned ? p.queries : p.keys;
  const bool edge =
      col + kCols > columns || (p.causal && (turned ? row + 15 > col : col + kCols - 1 > row));
#pragma unroll
  for (int c = 0; c < kOwnCols; ++c) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int mine = row + row_of(r), other = col + col_of(c);
      const int query = turned ? other : mine, key = turned ? mine : other;
      float& x = s.v[at(r, c)];
      x = fused(x, p.unit, more(r, c));
      if (kMasked && query < p.queries && key < p.keys) x += mask_of(p, by, query, key) * kUnit;
    }
  }
  if (!edge) return;
#pragma unroll
  for (int c = 0; c < kOwnCols; ++c) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int mine = row + row_of(r), other = col + col_of(c);
      const bool hides = turned ? any(hidden(i32(other), i32(mine)))
                                : any(hidden(i32(mine), i32(other)));
      if ((p.causal && hides) || other >= columns) s.v[at(r, c)] = -infinity;
    }
  }
}
// Element (query, key) of the dropout mask.
BRRR_VX float keep(const AttentionArguments& p, const Modifiers& by, int query, int key) {
  const i64 element((long)(by.element + (unsigned long)query * p.keys + key));
  return all(draw_keeps(i64(p.limit), i64(by.seed), i64(by.number), element)) ? p.kept : 0.0f;
}

// 2^x, by the GPU itself: of weights, which are 1 at most, its error of two units in the last place
// is what the rounding of scores makes, too, and a series would cost twenty times as much.
BRRR_VX f32 power(f32 x) {
#ifdef BRRR_EMULATED
  return f32(BRRR_VX_LIBM(exp2f)(x.v));
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x.v));
  return f32(y);
#endif
}
)";

}  // namespace brrr
