#pragma once
// Attention on a GPU: the kernels' compile-time parameters, and products of a warp's tiles.
//
// A block has 4 warps, each with 16 or 32 of the block's rows, and iterates over tiles of kCols
// columns that all warps read from shared memory. In forward and dq, rows are queries and columns
// keys; in dk and dv, rows are keys and columns queries. Float32 multiplies in registers, 4 rows
// and an eighth of the columns per thread; 16-bit floats use mma. Both share one mapping of a
// thread's part of a tile, row_of and col_of. The order of sums is a function of the shape and
// dtype alone.

namespace brrr {

/// The kernels' compile-time parameters, in Variant::n: the columns multiplied at a time and the
/// width that q, k and v are padded to, a multiple of 32, so that the pitch of shared memory is 4
/// words mod 16. `tall` are warps of 32 rows: mma operands from a tile of columns are then read
/// from shared memory once for two blocks of rows. The tile that takes most registers has the
/// largest bits(); it is the one that every test run compiles.
struct AttentionTile {
  int width, cols;
  bool dropout = false, masked = false, half = false, tall = false;
  int bits() const {
    return cols | width << 8 | dropout << 16 | masked << 17 | half << 18 | tall << 19;
  }
  int rows() const { return tall ? 128 : 64; }                    ///< Of a block: kRows.
  int copied() const { return tall && width <= 64 ? 64 : cols; }  ///< Columns at a time: kTile.
  int numbers() const { return masked ? 3 : 2; }  ///< Scalars per query as column: kNumbers.
};

inline constexpr char kAttentionProducts[] = R"(
constexpr int kWidth = N >> 8 & 255, kCols = N & 255, kThreads = 128;
constexpr bool kDropout = N >> 16 & 1, kMasked = N >> 17 & 1, kHalf = N >> 18 & 1;
constexpr int kRowBlocks = 1 + (N >> 19 & 1);  // Blocks of 16 rows per warp.
constexpr int kWarpRows = 16 * kRowBlocks, kRows = 4 * kWarpRows;
constexpr bool kMma = sizeof(T) == 2;
constexpr int kTile = kRowBlocks == 2 && kWidth <= 64 ? 64 : kCols;  // Columns copied at a time.
constexpr int kStride = kWidth + 16 / (int)sizeof(T);  // Pitch of rows in shared memory.

// Resident blocks per multiprocessor, as far as registers allow without spills; for compute
// capability 10 compilers take more registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kSpared = kMma;
#else
constexpr int kSpared = 0;
#endif
constexpr int kExtras = (kWidth > 64) + kMasked + 2 * kDropout;
constexpr int kKeysBlocks = kRowBlocks == 2 ? 2 : kExtras ? 1 : 3 - kSpared;
constexpr int kBlocks = kRowBlocks == 2 ? 2 : kExtras > kMma ? 1 : kExtras ? 3 : 3 + kMma - kSpared;

// --- a thread's part of a warp's tile ------------------------------------------------------------

// A thread's part of a warp's rows and n columns.
template <int n> struct Part { float v[kWarpRows * n / 32]; };
constexpr int kOwn = kMma ? 2 * kRowBlocks : 4;  // Rows of which a thread has elements,
constexpr int kShare = kMma ? 4 : 8;             // and threads that share one row.
constexpr int kOwnCols = kCols / kShare;
constexpr int kPack = kMma ? 2 : 4;  // Adjacent columns of a thread's results,
constexpr int kPacks = kWidth / kShare / kPack;

BRRR_VX int lane() { return threadIdx.x % 32; }
BRRR_VX int first_row() { return threadIdx.x / 32 * kWarpRows; }
BRRR_VX int row_of(int r) { return r * (32 / kShare) + lane() / kShare; }
BRRR_VX int col_of(int c) {
  return kMma ? c / 2 * 8 + lane() % 4 * 2 + c % 2 : c * 8 + lane() % 8;
}
BRRR_VX constexpr int at(int r, int c) {
  return kMma ? r / 2 * (kCols / 2) + c / 2 * 4 + r % 2 * 2 + c % 2 : c * 4 + r;
}
BRRR_VX int pack_col(int q) { return (q * kShare + lane() % kShare) * kPack; }
BRRR_VX constexpr int pack_at(int r, int q, int e) {
  return kMma ? r / 2 * (kWidth / 2) + q * 4 + r % 2 * 2 + e : (4 * q + e) * 4 + r;
}

// The sum over the threads that share a row; all get the same bits.
BRRR_VX f32 row_sum(f32 x) {
#pragma unroll
  for (int m = 1; m < kShare; m *= 2) x += shuffle_xor(x.v, m);
  return x;
}
// As larger(): NaN only if both are.
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
// 16 columns from `col` on of a part of n columns, for all blocks of rows.
template <int n> BRRR_VX void mma_rows(Part<n>& c, int col, unsigned (*a)[4], const unsigned* b) {
#pragma unroll
  for (int t = 0; t < kRowBlocks; ++t) {
    float* const to = c.v + t * (n / 2) + col / 2;
    mma(to, a[t], b);
    mma(to + 4, a[t], b + 2);
  }
}
// Two floats rounded to 16-bit floats, `low` at the lower address.
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

// The warp's rows of a tile that stays; to be `kept` in registers they must have arrived before.
constexpr bool kKept = kRowBlocks == 2 && kWidth <= 64;
template <bool kept> struct Rows {
  const T* from;
  unsigned own[kept ? kWidth / 16 : 1][kRowBlocks][4];

  __device__ __forceinline__ explicit Rows(const T* tile) : from(tile + first_row() * kStride) {
    if (kMma) from += lane() % 16 * kStride + lane() / 16 * 8;
    if constexpr (kept) {
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) read(own[k], k);
    }
  }
  __device__ __forceinline__ void read(unsigned (*to)[4], int k) const {
#pragma unroll
    for (int t = 0; t < kRowBlocks; ++t) load_matrices(to[t], from + t * 16 * kStride + k * 16);
  }
};

// s += a b^T: the warp's rows of a, kCols rows of b.
template <bool kept> BRRR_VX void multiply(Part<kCols>& s, Rows<kept>& a, const T* b) {
  if constexpr (kMma) {
    b += (lane() % 8 + lane() / 16 * 8) * kStride + lane() / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      unsigned(*const fa)[4] = a.own[kept ? k : 0];
      if (!kept) a.read(fa, k);
#pragma unroll
      for (int j = 0; j < kCols; j += 16) {
        unsigned fb[4];
        load_matrices(fb, b + j * kStride + k * 16);
        mma_rows(s, j, fa, fb);
      }
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < kWidth; k += 4) {
      Pack<float, 4> fa[kOwn];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        fa[r] = *(const Pack<float, 4>*)(a.from + row_of(r) * kStride + k);
      }
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

// Pitch of the room where threads pass float32 weights to the threads that multiply by them.
constexpr int kRoomStride = kCols + 8;

// c += s b, for kCols rows of b.
BRRR_VX void accumulate(Part<kWidth>& c, const Part<kCols>& s, const T* b, float* room) {
  if constexpr (kMma) {
    b += lane() % 16 * kStride + lane() / 16 * 8;
#pragma unroll
    for (int k = 0; k < kCols; k += 16) {
      unsigned fa[kRowBlocks][4];
#pragma unroll
      for (int t = 0; t < kRowBlocks; ++t) {
        const float* const x = s.v + t * (kCols / 2) + k / 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) fa[t][i] = pair(x[2 * i], x[2 * i + 1]);
      }
#pragma unroll
      for (int q = 0; q < kWidth; q += 16) {
        unsigned fb[4];
        load_matrices_transposed(fb, b + k * kStride + q);
        mma_rows(c, q, fa, fb);
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
)";

}  // namespace brrr
