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

/// `head` are strides of the leading dims, `sizes` their sizes; all in elements.
BRRR_DEVICE_STRUCT(AttentionArguments, {
  struct Matrix {
    const char* data;
    long row, col, head[6];
  };
  Matrix q, k, v, mask, g, out, to, dk, dv;
  long sizes[6];
  int dims, queries, keys, width, depth, causal, bool_mask, packed;
  int to_quads, dk_quads, dv_quads;
  float scale;
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

// --- a thread's part of a warp's tile ------------------------------------------------------------

// 16 rows, n columns.
template <int n> struct Part { float v[n / 2]; };
constexpr int kOwn = kMma ? 2 : 4;    // Rows that a thread has elements of,
constexpr int kShare = kMma ? 4 : 8;  // and threads that have elements of one row.
constexpr int kOwnCols = kCols / kShare;
constexpr int kQuads = kWidth / kShare / 4;

BRRR_VX int lane() { return threadIdx.x % 32; }
BRRR_VX int first_row() { return threadIdx.x / 32 * 16; }
BRRR_VX int row_of(int r) { return r * (16 / kOwn) + lane() / kShare; }
BRRR_VX int col_of(int c) {
  return kMma ? c / 2 * 8 + lane() % 4 * 2 + c % 2 : c * 8 + lane() % 8;
}
BRRR_VX constexpr int at(int r, int c) { return kMma ? c / 2 * 4 + r * 2 + c % 2 : c * 4 + r; }
// Results have their columns in fours side by side: where mma's fragments of two blocks of 8
// columns are taken as one of 16, the columns' names may be exchanged.
BRRR_VX int quad_col(int q) { return (q * kShare + lane() % kShare) * 4; }
BRRR_VX constexpr int quad_at(int r, int q, int e) {
  return kMma ? (2 * q + e % 2) * 4 + r * 2 + e / 2 : (4 * q + e) * 4 + r;
}

// Of a row's threads together; all get the same bits.
BRRR_VX f32 row_sum(f32 x) {
#pragma unroll
  for (int m = 1; m < kShare; m *= 2) x += shuffle_xor(x.v, m);
  return x;
}
BRRR_VX f32 row_max(f32 x) {
#pragma unroll
  for (int m = 1; m < kShare; m *= 2) x = larger(x, f32(shuffle_xor(x.v, m)));
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
BRRR_VX unsigned word(const T* p) { return *(const unsigned*)p; }
BRRR_VX float fused(float a, float b, float c) { return fma(f32(a), f32(b), f32(c)).v; }

// s = a b^T: 16 rows of a, kCols of b.
BRRR_VX void multiply(Part<kCols>& s, const T* a, const T* b) {
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) s.v[i] = 0;
  if constexpr (kMma) {
    const int row = lane() / 4, two = lane() % 4 * 2;
    a += row * kStride + two;
    b += row * kStride + two;
#pragma unroll
    for (int k = 0; k < kWidth; k += 16) {
      const unsigned fa[4] = {word(a + k), word(a + 8 * kStride + k), word(a + k + 8),
                              word(a + 8 * kStride + k + 8)};
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const T* from = b + j * 8 * kStride + k;
        const unsigned fb[2] = {word(from), word(from + 8)};
        mma(s.v + 4 * j, fa, fb);
      }
    }
  } else {
#pragma unroll 2
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
constexpr int kRoomStride = kCols + 4;
constexpr int kRoom = kMma ? 0 : kRows * kRoomStride;

// c += s b: kCols rows of b.
BRRR_VX void accumulate(Part<kWidth>& c, const Part<kCols>& s, const T* b, float* room) {
  if constexpr (kMma) {
    b += lane() % 4 * 2 * kStride + lane() / 4 * 2;
#pragma unroll
    for (int k = 0; k < kCols; k += 16) {
      const float *left = s.v + k / 2, *right = left + 4;
      const unsigned fa[4] = {pair(left[0], left[1]), pair(left[2], left[3]),
                              pair(right[0], right[1]), pair(right[2], right[3])};
#pragma unroll
      for (int q = 0; q < kWidth / 16; ++q) {
        const T* from = b + k * kStride + q * 16;
        const unsigned w0 = word(from), w1 = word(from + kStride);
        const unsigned w8 = word(from + 8 * kStride), w9 = word(from + 9 * kStride);
        const unsigned even[2] = {(w0 & 0xffff) | w1 << 16, (w8 & 0xffff) | w9 << 16};
        const unsigned odd[2] = {w0 >> 16 | (w1 & 0xffff0000), w8 >> 16 | (w9 & 0xffff0000)};
        mma(c.v + 8 * q, fa, even);
        mma(c.v + 8 * q + 4, fa, odd);
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
        for (int q = 0; q < kQuads; ++q) {
          const Pack<float, 4> fb = *(const Pack<float, 4>*)(b + (k + e) * kStride + quad_col(q));
#pragma unroll
          for (int r = 0; r < kOwn; ++r) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
              c.v[quad_at(r, q, x)] = fused(fa[r].v[e], fb.v[x], c.v[quad_at(r, q, x)]);
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
BRRR_VX const E* of_head(const AttentionArguments& p, const Matrix& m, long head) {
  long at = 0;
  for (int d = p.dims - 1; d >= 0; --d) {
    at += head % p.sizes[d] * m.head[d];
    head /= p.sizes[d];
  }
  return (const E*)m.data + at;
}

// Rows [first, first + rows) of a matrix of `end` rows into shared memory, zeros beyond its ends.
BRRR_VX void load_tile(T* to, const T* from, const Matrix& m, int first, int rows, int end,
                       int columns, bool packed) {
  constexpr int each = 16 / sizeof(T), packs = kWidth / each;
  for (int i = threadIdx.x; i < rows * packs; i += kThreads) {
    const int row = i / packs, at = i % packs * each;
    const T* p = from + (first + row) * m.row + at;
    Pack<T, each> x = {};
    if (first + row < end && at < columns) {
      if (packed) {
        x = *(const Pack<T, each>*)p;
      } else {
#pragma unroll
        for (int e = 0; e < each; ++e) {
          if (at + e < columns) x.v[e] = p[e];
        }
      }
    }
    *(Pack<T, each>*)(to + row * kStride + at) = x;
  }
}

// The warp's rows from `first` on of a matrix, each times its factor. `quads`: four elements at a
// time can be written.
BRRR_VX void store_tile(const AttentionArguments& p, const Matrix& m, bool quads, long head,
                        const Part<kWidth>& c, const float* factor, int first, int end,
                        int columns) {
  T* const matrix = (T*)of_head<T>(p, m, head);
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
    const int row = first + row_of(r);
    if (row >= end) continue;
    T* const to = matrix + row * m.row;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int col = quad_col(q);
      Pack<T, 4> x;
#pragma unroll
      for (int e = 0; e < 4; ++e) put(x.v + e, f32(c.v[quad_at(r, q, e)] * factor[r]));
      if (quads) {
        if (col < columns) *(Pack<T, 4>*)(to + col) = x;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
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

  __device__ __forceinline__ Modifiers(const AttentionArguments& p, long head)
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

// A score from its product; -inf where the query must not look. Where not `edge`, it may look at
// all keys as far as the causal rule and the ends go.
BRRR_VX f32 score(const AttentionArguments& p, const Modifiers& by, float product, int query,
                  int key, bool edge) {
  const bool outside = query >= p.queries || key >= p.keys;
  if (edge && (outside || (p.causal && any(hidden(i32(query), i32(key)))))) return lowest<f32>();
  f32 x(product * p.scale);
  if (kMasked) {
    const long at = query * p.mask.row + key * p.mask.col;
    x += p.bool_mask ? mask_term<f32>(ne(i32(by.mask[at]), i32(0)))
                     : f32(((const float*)by.mask)[at]);
  }
  return x;
}
// Element (query, key) of the dropout mask.
BRRR_VX float keep(const AttentionArguments& p, const Modifiers& by, int query, int key) {
  const i64 element((long)(by.element + (unsigned long)query * p.keys + key));
  return all(draw_keeps(i64(p.limit), i64(by.seed), i64(by.number), element)) ? p.kept : 0.0f;
}

// e^x. Where weights become 16-bit floats the GPU's own power of 2 is exact enough and costs a
// fifth.
BRRR_VX f32 power(f32 x) {
  if constexpr (kMma) return f32(BRRR_VX_LIBM(exp2f)(x.v * 1.44269504f));
  else return exp(x);
}
)";

}  // namespace brrr
