#pragma once
// The innermost part of matrix products: a tile of the result in registers. Every element is one
// chain of fused multiply-adds in the order of k, so that its bits do not depend on the tile's
// shape or the machine's vector width.

#include <array>
#include <cstdint>
#include <utility>

#include "ops/vocabulary/vec.h"
#include "ops/vocabulary/vec_math.h"

namespace brrr::tile {

// --- one hardware register -----------------------------------------------------------------------

template <class T> using RegOf = typename vx::Part<T>::type;
template <class T> inline constexpr int kWidthOf = BRRR_VX_BYTES / sizeof(T);
using Reg = RegOf<float>;
inline constexpr int kWidth = kWidthOf<float>;

template <class T> BRRR_VX RegOf<T> load(const T* p) {
  RegOf<T> r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
template <class T> BRRR_VX void store(T* p, RegOf<T> v) { __builtin_memcpy(p, &v, sizeof v); }
// Exact for every x, and compiled to a broadcast.
template <class T> BRRR_VX RegOf<T> splat(T x) { return x - RegOf<T>{}; }

BRRR_VX Reg fma(Reg a, Reg b, Reg c) {
#if BRRR_VX_BYTES == 64
  return vx::fma(a, b, c);
#elif BRRR_VX_BYTES == 32 && defined(__FMA__)
  return __builtin_ia32_vfmaddps256(a, b, c);
#else
  for (int i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}
BRRR_VX RegOf<double> fma(RegOf<double> a, RegOf<double> b, RegOf<double> c) {
#if BRRR_VX_BYTES == 64
  return __builtin_ia32_vfmaddpd512_mask(a, b, c, static_cast<unsigned char>(-1), 4);
#elif BRRR_VX_BYTES == 32 && defined(__FMA__)
  return __builtin_ia32_vfmaddpd256(a, b, c);
#else
  for (int i = 0; i < kWidthOf<double>; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
#endif
}

// The first n lanes; the others are zero and their memory is not touched.
template <class T> BRRR_VX RegOf<T> load_n(const T* p, int n) {
  return vx::load_first<RegOf<T>>(p, n);
}
template <class T> BRRR_VX void store_n(T* p, RegOf<T> v, int n) { vx::store_first(p, v, n); }

// --- the tile ------------------------------------------------------------------------------------

// A tile keeps rows x regs accumulators in registers, beside regs of B and a broadcast element of
// A. Two FMAs per cycle with a latency of four cycles need at least eight accumulators; the more
// there are, the less often a tile begins and ends. With few rows a tile is wider.
inline constexpr int kRegs = BRRR_VX_BYTES == 64 ? 3 : 2;
inline constexpr int kFlatRows = BRRR_VX_BYTES == 64 ? 2 : 3;
inline constexpr int kFlatRegs = BRRR_VX_BYTES == 64 ? 8 : 4;
/// The most rows of a tile that is `regs` wide.
constexpr int tile_rows(int regs) {
  return regs > kRegs ? kFlatRows : regs < kRegs ? 12 : BRRR_VX_BYTES == 64 ? 8 : 6;
}
inline constexpr int kTallest = tile_rows(1);

inline constexpr int64_t kPrefetchTerms = 16;  // Hundreds of cycles: an L3 access.

// The left operand has any strides (so a transpose costs nothing), the right one contiguous rows.
// `last` lanes of the last register are columns of C. `count` tiles, one below the other.
template <class T> struct Tile {
  int64_t k;
  const T* a = nullptr;
  int64_t a_row, a_k;
  const T* b;
  int64_t b_k;
  T* c = nullptr;
  int64_t c_row;
  int last;
  bool add;             // Accumulate on C: start from it,
  bool at_end = false;  // or from zero, and add C at the end.
  int64_t count = 1;
  // Far tiles: whether to prefetch results; where the next panel of B begins, as an offset from b,
  // to be prefetched one line of each row per tile (0: none).
  bool results = false;
  int64_t next_b = 0;
};

// One of the tiles: left operand at `a`, result at `c`. A `far` tile prefetches its operands, which
// costs the smallest tiles a tenth if they are in the L1 cache.
template <class T, int rows, int regs, bool tail, bool far>
BRRR_VX void one_tile(const Tile<T>& t, const T* a, T* c, int64_t a_row, int64_t a_k, int64_t b_k,
                      int64_t c_row, int last, int64_t next_b) {
  using R = RegOf<T>;
  constexpr int kWidth = kWidthOf<T>;
  // One base per three rows: an x86 address is a base and once or twice a stride.
  constexpr int kBases = (rows + 2) / 3;
  R sum[rows][regs];
  const T* base[kBases];
#pragma GCC unroll 8
  for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * a_row;
#pragma GCC unroll 24
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) sum[i][j] = R{};
  }
  if (far && t.results) {
    // If added to, this tile's results are read at once: prefetch the next tile's.
    const T* at = t.add ? c + rows * c_row : c;
#pragma GCC unroll 24
    for (int i = 0; i < rows; ++i, at += c_row) {
#pragma GCC unroll 8
      for (int j = 0; j < regs; ++j) __builtin_prefetch(at + j * kWidth, 1);
    }
  }
  if (t.add && !t.at_end) {
#pragma GCC unroll 24
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < regs; ++j) {
        const T* const at = c + i * c_row + j * kWidth;
        sum[i][j] = j + 1 < regs ? load(at) : load_n(at, last);
      }
    }
  }
  const T* b = t.b;
  for (int64_t k = t.k; k > 0; --k, b += b_k) {
    if constexpr (far) {
      vx::prefetch<2>(b + next_b);
      // In a transposed left operand each term is a cache line of its own.
      vx::prefetch<1>(base[0] + kPrefetchTerms * a_k);
    }
    R right[regs];
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      right[j] = tail && j + 1 == regs ? load_n(b + j * kWidth, last) : load(b + j * kWidth);
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows; ++i) {
      const R left = splat(base[i / 3][i % 3 * a_row]);
#pragma GCC unroll 8
      for (int j = 0; j < regs; ++j) sum[i][j] = fma(left, right[j], sum[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) base[i] += a_k;
  }
  if (last == kWidth && !t.at_end) {
#pragma GCC unroll 24
    for (int i = 0; i < rows; ++i, c += c_row) {
#pragma GCC unroll 8
      for (int j = 0; j < regs; ++j) store(c + j * kWidth, sum[i][j]);
    }
    return;
  }
  const bool at_end = t.at_end;
#pragma GCC unroll 24
  for (int i = 0; i < rows; ++i, c += c_row) {
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      T* const to = c + j * kWidth;
      const bool whole = j + 1 < regs;  // With AVX2 masked accesses take ten times as long.
      if (at_end) sum[i][j] = (whole ? load(to) : load_n(to, last)) + sum[i][j];
      whole ? store(to, sum[i][j]) : store_n(to, sum[i][j], last);
    }
  }
}

template <class T, int rows, int regs, bool tail, bool far> void run_tile(const Tile<T>& t) {
  int64_t a_row = t.a_row, a_k = t.a_k, b_k = t.b_k, c_row = t.c_row;
  const int last = t.last;
  const T* a = t.a;
  T* c = t.c;
  int64_t next_b = t.next_b;
  for (int64_t n = t.count; n > 0; --n, a += rows * a_row, c += rows * c_row) {
    // Keeps g++ from computing multiples of these before the loop and spilling them.
    asm("" : "+r"(a_row), "+r"(a_k), "+r"(c_row));
    one_tile<T, rows, regs, tail, far>(t, a, c, a_row, a_k, b_k, c_row, last, next_b);
    next_b = t.next_b && t.count - n + 1 < regs ? next_b + kWidthOf<T> : 0;
  }
}

template <class T> using TileFn = void (*)(const Tile<T>&);
/// By registers - 1 and rows - 1.
template <class T> using Tiles = std::array<std::array<TileFn<T>, kTallest>, kFlatRegs>;

template <class T, bool tail, bool far, int regs, int... row>
constexpr void fill_tiles(Tiles<T>& all, std::integer_sequence<int, row...>) {
  ((all[regs - 1][row] = run_tile<T, row + 1, regs, tail, far>), ...);
}
template <class T, bool tail, bool far, int... reg>
constexpr Tiles<T> tiles(std::integer_sequence<int, reg...>) {
  Tiles<T> all{};
  (fill_tiles<T, tail, far, reg + 1>(all, std::make_integer_sequence<int, tile_rows(reg + 1)>{}),
   ...);
  return all;
}

/// The second table reads no more than `last` lanes of the right operand's last register.
template <class T, bool far = false>
inline constexpr std::array kTiles{
    tiles<T, false, far>(std::make_integer_sequence<int, kFlatRegs>{}),
    tiles<T, true, far>(std::make_integer_sequence<int, kFlatRegs>{})};

}  // namespace brrr::tile
