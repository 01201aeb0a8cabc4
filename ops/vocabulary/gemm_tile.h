#pragma once
// The innermost part of matrix products: a tile of the result in registers, and transposition.
// Every element is one chain of fused multiply-adds in the order of k, so that its bits do not
// depend on the tile's shape or the machine's vector width.

#include <algorithm>
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
template <class T> BRRR_VX RegOf<T> splat(T x) {
  return x - RegOf<T>{};
}  // Exact for every x: compilers broadcast.

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

// A tile keeps rows x regs sums in registers; on top come regs of B and a broadcast element of A.
// Two FMAs a cycle of four cycles' latency need eight sums at least.
inline constexpr int kRows = BRRR_VX_BYTES == 64 ? 8 : 6, kRegs = BRRR_VX_BYTES == 64 ? 3 : 2;
inline constexpr int kFlatRows = BRRR_VX_BYTES == 64 ? 2 : 3,
                     kFlatRegs = BRRR_VX_BYTES == 64 ? 8 : 4;

inline constexpr int64_t kTermsAhead = 16;  // Hundreds of cycles: what a third cache takes.

// The left operand by strides (so a transpose costs nothing), the right one by rows of contiguous
// elements. `last` lanes of the last register are columns of C.
template <class T> struct Tile {
  int64_t k;
  const T* a = nullptr;
  int64_t a_row, a_k;
  const T* b;
  int64_t b_k;
  T* c = nullptr;
  int64_t c_row;
  int last;
  bool add;             // Go on from what C holds, or,
  bool at_end = false;  // from zero, and add that to what C holds.
};

template <class T, int rows, int regs, bool tail> void run_tile(const Tile<T>& t) {
  using R = RegOf<T>;
  constexpr int kWidth = kWidthOf<T>;
  R sum[rows][regs];
  const T* row[rows];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    row[i] = i == 0 ? t.a : row[i - 1] + t.a_row;
    const T* c = t.c + i * t.c_row;
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      const T* at = c + j * kWidth;
      sum[i][j] = !t.add || t.at_end ? R{} : j + 1 < regs ? load(at) : load_n(at, t.last);
    }
  }
  const T* b = t.b;
  const int64_t a_k = t.a_k, b_k = t.b_k;
  const int last = t.last;
  for (int64_t k = t.k, at = 0; k > 0; --k, at += a_k, b += b_k) {
    // Of a transposed left operand each term is a line of its own.
    vx::prefetch<1>(t.a + at + kTermsAhead * a_k);
    R right[regs];
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      right[j] = tail && j + 1 == regs ? load_n(b + j * kWidth, last) : load(b + j * kWidth);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const R left = splat(row[i][at]);
#pragma GCC unroll 8
      for (int j = 0; j < regs; ++j) sum[i][j] = fma(left, right[j], sum[i][j]);
    }
  }
  T* c = t.c;
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i, c += t.c_row) {
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      T* const to = c + j * kWidth;
      const bool whole = j + 1 < regs || last == kWidth;
      if (t.at_end) sum[i][j] = (whole ? load(to) : load_n(to, last)) + sum[i][j];
      if (whole) {
        store(to, sum[i][j]);
      } else {
        store_n(to, sum[i][j], last);
      }
    }
  }
}

template <class T> using TileFn = void (*)(const Tile<T>&);

template <class T, bool tail, int rows, int... regs>
constexpr std::array<TileFn<T>, kFlatRegs> tile_row(std::integer_sequence<int, regs...>) {
  return {run_tile<T, rows, regs + 1, tail>...};
}

template <class T, bool tail, int... row>
constexpr std::array<std::array<TileFn<T>, kFlatRegs>, kRows> tiles(
    std::integer_sequence<int, row...>) {
  return {tile_row<T, tail, row + 1>(std::make_integer_sequence < int,
                                     row<kFlatRows ? kFlatRegs : kRegs>{})...};
}

// By rows - 1 and registers - 1; kTailTiles reads no more than `last` lanes of the right operand's
// last register.
template <class T>
inline constexpr auto kTiles = tiles<T, false>(std::make_integer_sequence<int, kRows>{});
template <class T>
inline constexpr auto kTailTiles = tiles<T, true>(std::make_integer_sequence<int, kRows>{});

// --- transposition -------------------------------------------------------------------------------

// Lane l of the result, as an index into the lanes of a and then those of b.
enum class Mix { Floats, Pairs, Halves, Quads };
template <Mix mix, int part> constexpr int mixed(int l) {
  const int quad = l / 4 * 4;
  switch (mix) {
    case Mix::Floats:
      return quad + l % 4 / 2 + 2 * part + l % 2 * kWidth;
    case Mix::Pairs:
      return quad + l % 2 + 2 * part + l % 4 / 2 * kWidth;
    case Mix::Halves:
      return l % (kWidth / 2) + kWidth / 2 * (part + l / (kWidth / 2) * 2);
    default:
      return l % 4 + 4 * part + quad % 8 * 2 + l / 8 * kWidth;
  }
}

template <Mix mix, int part, int... l>
BRRR_VX Reg shuffle(Reg a, Reg b, std::integer_sequence<int, l...>) {
  return __builtin_shufflevector(a, b, mixed<mix, part>(l)...);
}

template <Mix mix> BRRR_VX void exchange(Reg& a, Reg& b) {
  constexpr std::make_integer_sequence<int, kWidth> all{};
  const Reg low = shuffle<mix, 0>(a, b, all);
  b = shuffle<mix, 1>(a, b, all);
  a = low;
}

// Within each four lanes first, then the fours among each other: r[c] becomes column c.
template <int width> BRRR_VX void transpose(Reg (&r)[width]) {
#pragma GCC unroll 16
  for (int i = 0; i < width; i += 4) {
    exchange<Mix::Floats>(r[i], r[i + 1]);
    exchange<Mix::Floats>(r[i + 2], r[i + 3]);
    exchange<Mix::Pairs>(r[i], r[i + 2]);
    exchange<Mix::Pairs>(r[i + 1], r[i + 3]);
    std::swap(r[i + 1], r[i + 2]);
  }
  if constexpr (width >= 8) {
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) {
      if (i % 8 < 4) exchange<Mix::Halves>(r[i], r[i + 4]);
    }
  }
  if constexpr (width == 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) exchange<Mix::Quads>(r[i], r[i + 8]);
#pragma GCC unroll 16
    for (int i = 4; i < 8; ++i) std::swap(r[i], r[i + 4]);
  }
}

// to[c][r] = from[r][c]. With `pad` whole registers are written, zeros after the last row.
inline void transpose(const float* from, int64_t from_row, int64_t rows, int64_t cols, float* to,
                      int64_t to_row, bool pad) {
  for (int64_t i = 0; i < rows; i += kWidth) {
    const int height = static_cast<int>(std::min<int64_t>(kWidth, rows - i));
    for (int64_t j = 0; j < cols; j += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, cols - j));
      const float* src = from + i * from_row + j;
      Reg r[kWidth];
      if (height == kWidth && width == kWidth) {
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) r[c] = load(src + c * from_row);
      } else {
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) {
          r[c] = c < height ? load_n(src + c * from_row, width) : Reg{};
        }
      }
      transpose(r);
      float* dst = to + j * to_row + i;
      if (width == kWidth && (pad || height == kWidth)) {
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) store(dst + c * to_row, r[c]);
      } else {
        const int lanes = pad ? kWidth : height;
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) {
          if (c < width) store_n(dst + c * to_row, r[c], lanes);
        }
      }
    }
  }
}
inline void transpose(const double* from, int64_t from_row, int64_t rows, int64_t cols, double* to,
                      int64_t to_row, bool) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
}

}  // namespace brrr::tile
