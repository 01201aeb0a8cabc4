#pragma once
// Attention on a GPU: the kernels' arguments, loads and stores of tiles, and what is done with a
// tile of scores.

#include "core/device_kernel.h"
#include "ops/rows/attention_products.h"

namespace brrr {

/// `head` are strides of the leading dims, `sizes` their sizes; all in elements. `max` on a GPU is
/// not the row's maximum but the term that turns scores times log2 e into log2 of the weights; with
/// a mask it is added to the scores themselves, and weights are still to be divided by `sum`.
/// `unit` is scale times log2 e.
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

inline constexpr char kAttentionTiles[] = R"(
// --- tiles and memory ----------------------------------------------------------------------------

using Matrix = AttentionArguments::Matrix;

// Where a head begins in each of some matrices; for all at once, because the divisions are slow.
template <int n> struct Places { long at[n]; };
template <class... M>
BRRR_VX Places<sizeof...(M)> places(const AttentionArguments& p, unsigned head, const M&... m) {
  constexpr int n = sizeof...(M);
  const Matrix* const all[n] = {&m...};
  Places<n> to = {};
#pragma unroll 1
  for (int d = p.dims - 1; d >= 0; --d) {
    const unsigned left = d > 0 ? head / (unsigned)p.sizes[d] : 0;
    const long index = head - left * (unsigned)p.sizes[d];
#pragma unroll
    for (int i = 0; i < n; ++i) to.at[i] += index * all[i]->head[d];
    head = left;
  }
  return to;
}
template <class E>
BRRR_VX const E* of_head(const AttentionArguments& p, const Matrix& m, unsigned head) {
  return (const E*)m.data + places(p, head, m).at[0];
}

// Consecutive elements of a row that has `columns` more, zeros beyond them.
template <int each> BRRR_VX Pack<T, each> elements(const T* p, int columns, bool packed) {
  if (packed) return *(const Pack<T, each>*)p;
  Pack<T, each> x = {};
#pragma unroll
  for (int e = 0; e < each; ++e) {
    if (e < columns) x.v[e] = p[e];
  }
  return x;
}

// Waits until all copies by the block's threads are complete.
BRRR_VX void arrived() {
  await_copies();
  __syncthreads();
}
// Rows [first, first + rows) of a matrix of `end` rows into shared memory, zeros beyond its ends.
// Copies in packs are asynchronous; they are complete after arrived().
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
    *(Pack<T, each>*)to = elements<each>(p, first + row < end ? columns - at : 0, false);
  }
}

// Tiles of columns of two matrices, of which kCols columns are multiplied at a time. With 16-bit
// floats they are double-buffered: the next tiles are copied while these are multiplied.
constexpr int kStages = kMma ? 2 : 1;
constexpr int kNumbers = kMasked ? 3 : 2;
constexpr int kTiles = 2 * kTile * kStride;
constexpr int kStage = kTiles + kNumbers * 4 * kTile / (int)sizeof(T);
template <bool turned> struct Columns {
  const AttentionArguments& p;
  const Matrix &a, &b;
  const T *from_a, *from_b;
  // Per stage tiles of a and b; if columns are queries p.max, p.along and, with a mask, p.sum.
  T* room;
  unsigned head;

  __device__ __forceinline__ T* stage(int col) const {
    return kStages == 1 ? room : room + col / kTile % 2 * kStage;
  }
  __device__ __forceinline__ void start(int col) const {
    T* const to = stage(col);
    const int rows = turned ? p.queries : p.keys;
    load_tile<kTile>(to, from_a, a, col, rows, p.width, p.packed);
    load_tile<kTile>(to + kTile * kStride, from_b, b, col, rows, p.depth, p.packed);
#pragma unroll
    for (int n = threadIdx.x; turned && n < kNumbers * kTile; n += kThreads) {
      const float* const from = n < kTile ? p.max : n < 2 * kTile ? p.along : p.sum;
      const int i = col + n % kTile;
      const bool there = i < rows;
      copy_async<4>((float*)(to + kTiles) + n, from + ((long)head * rows + (there ? i : 0)), there);
    }
  }
  __device__ __forceinline__ void begin(int col, int end) const {
    if (kStages == 2 && col < end) start(col);
  }
  // The columns of a from `col` on; those of b follow one tile later. With two stages the copies of
  // this tile have been started before; earlier tiles are no longer needed.
  __device__ __forceinline__ const T* next(int col, int end) const {
    if (col % kTile == 0) {
      if (kStages == 1) {
        __syncthreads();
        start(col);
      }
      arrived();
      if (kStages == 2) begin(col + kTile, end);
    }
    return stage(col) + col % kTile * kStride;
  }
  // p.max of the queries from `col` on; p.along follows kTile later, p.sum 2 * kTile later.
  __device__ __forceinline__ const float* more(int col) const {
    return (const float*)(stage(col) + kTiles) + col % kTile;
  }
};

// Stores the warp's rows from `first` on of a matrix, each times its factor. `packs`: kPack
// elements at a time can be written.
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

// The mask and dropout of a head's scores.
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

// The mask's term of a score.
BRRR_VX float mask_of(const AttentionArguments& p, const Modifiers& by, int query, int key) {
  const long at = query * p.mask.row + key * p.mask.col;
  if (!p.bool_mask) return ((const float*)by.mask)[at];
  return mask_term<f32>(ne(i32(by.mask[at]), i32(0))).v;
}
// Scores are kept times log2 e, as power() takes them, except with a mask: that may be as large as
// a float can be, and the log of a sum of weights would vanish beside it. If scores are products
// times one positive factor, the forward pass applies it only when it subtracts the maximum.
constexpr float kUnit = 1.44269504f;
constexpr bool kProducts = kMma && !kMasked;
// Turns products into scores plus `more(r, c)`: the warp's rows from `row` on, columns from `col`
// on; if `turned`, rows are keys and columns queries.
template <bool turned, class More>
BRRR_VX void to_scores(const AttentionArguments& p, const Modifiers& by, Part<kCols>& s, int row,
                       int col, More more) {
#pragma unroll
  for (int c = 0; c < kOwnCols; ++c) {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int mine = row + row_of(r), other = col + col_of(c);
      const int query = turned ? other : mine, key = turned ? mine : other;
      float& x = s.v[at(r, c)];
      if (kMasked) {
        x *= p.scale;
        if (by.mask && query < p.queries && key < p.keys) x += mask_of(p, by, query, key);
        x += more(r, c);
      } else {
        x = fused(x, p.unit, more(r, c));
      }
    }
  }
}
// Whether the causal rule hides all of the warp's rows and columns.
template <bool turned> BRRR_VX bool unseen(const AttentionArguments& p, int row, int col) {
  return p.causal && (turned ? col + kCols <= row : row + kWarpRows <= col);
}
// Sets scores that the causal rule hides, or of columns beyond the end, to -infinity.
template <bool turned>
BRRR_VX void hide(const AttentionArguments& p, Part<kCols>& s, int row, int col) {
  const int columns = turned ? p.queries : p.keys;
  const int first = turned ? col : row, last = turned ? row + kWarpRows : col + kCols;
  if (col + kCols <= columns && !(p.causal && last - 1 > first)) return;
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

// 2^x by the GPU's instruction: for weights, which are at most 1, its error of two units in the
// last place is like that of rounding the scores, and a series would cost twenty times as much.
BRRR_VX f32 power(f32 x) {
#ifdef BRRR_EMULATED
  return f32(BRRR_VX_LIBM(exp2f)(x.v));
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x.v));
  return f32(y);
#endif
}
// The weight of a score from which its row's maximum is subtracted.
BRRR_VX f32 weight(f32 x) { return power(kMasked ? x * kUnit : x); }
)";

}  // namespace brrr
