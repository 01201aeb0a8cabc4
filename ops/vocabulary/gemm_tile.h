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
// Exact for every x: compilers broadcast.
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

// A tile keeps rows x regs sums in registers; on top come regs of B and a broadcast element of A.
// Two FMAs a cycle of four cycles' latency need eight sums at least; the more there are the less
// often a tile begins and ends. Of few rows a tile is wider.
inline constexpr int kRegs = BRRR_VX_BYTES == 64 ? 3 : 2;
inline constexpr int kFlatRows = BRRR_VX_BYTES == 64 ? 2 : 3;
inline constexpr int kFlatRegs = BRRR_VX_BYTES == 64 ? 8 : 4;
/// The most rows of a tile that is `regs` wide.
constexpr int tile_rows(int regs) {
  return regs > kRegs ? kFlatRows : regs < kRegs ? 12 : BRRR_VX_BYTES == 64 ? 8 : 6;
}
inline constexpr int kTallest = tile_rows(1);

inline constexpr int64_t kTermsAhead = 16;  // Hundreds of cycles: what a third cache takes.

// The left operand by strides (so a transpose costs nothing), the right one by rows of contiguous
// elements. `last` lanes of the last register are columns of C. `count` tiles one below the other.
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
  int64_t count = 1;
  // Far tiles: whether results are asked for, and, a line of each row a tile, the panel that lies
  // so many elements behind this one's.
  bool results = false;
  int64_t next_b = 0;
};

// One of them, its left operand from `a` on, its result to `c`. A `far` one asks for operands
// ahead, which costs the smallest a tenth where they are in the first cache.
template <class T, int rows, int regs, bool tail, bool far>
BRRR_VX void one_tile(const Tile<T>& t, const T* a, T* c, int64_t a_row, int64_t a_k, int64_t b_k,
                      int64_t c_row, int last, int64_t next_b) {
  using R = RegOf<T>;
  constexpr int kWidth = kWidthOf<T>;
  // By three: an address of x86 is a base and once or twice a stride.
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
    // What is there is wanted at once: the next tile's.
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
      // Of a transposed left operand each term is a line of its own.
      vx::prefetch<1>(base[0] + kTermsAhead * a_k);
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
      const bool whole = j + 1 < regs;  // What is masked takes AVX2 ten times as long.
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
    // What g++ could compute of these before the loop it would keep on the stack.
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

/// The second ones read no more than `last` lanes of the right operand's last register.
template <class T, bool far = false>
inline constexpr std::array kTiles{
    tiles<T, false, far>(std::make_integer_sequence<int, kFlatRegs>{}),
    tiles<T, true, far>(std::make_integer_sequence<int, kFlatRegs>{})};

// --- transposition -------------------------------------------------------------------------------

// Lane l of the result, as an index into the lanes of a and then those of b.
enum class Mix { Floats, Pairs, Halves, Quads };
template <Mix mix, int part> constexpr int mixed(int l) {
  const int quad = l / 4 * 4;
  if (mix == Mix::Floats) return quad + l % 4 / 2 + 2 * part + l % 2 * kWidth;
  if (mix == Mix::Pairs) return quad + l % 2 + 2 * part + l % 4 / 2 * kWidth;
  if (mix == Mix::Halves) return l % (kWidth / 2) + kWidth / 2 * (part + l / (kWidth / 2) * 2);
  return l % 4 + 4 * part + quad % 8 * 2 + l / 8 * kWidth;
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

#if BRRR_VX_BYTES == 64
// Half a register from each place, in one instruction: g++ 12 would load both and permute them.
BRRR_VX Reg load_halves(const float* low, const float* high) {
  double __attribute__((vector_size(32))) first, second;
  __builtin_memcpy(&first, low, sizeof first);
  __builtin_memcpy(&second, high, sizeof second);
  const auto r = __builtin_shufflevector(first, first, 0, 1, 2, 3, -1, -1, -1, -1);
  return (Reg)__builtin_ia32_insertf64x4_mask(r, second, 1, r, static_cast<unsigned char>(-1));
}
#endif

// The rest of a transposition once rows' halves lie side by side.
BRRR_VX void transpose_joined(Reg (&r)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; i += 4) {
    exchange<Mix::Floats>(r[i], r[i + 1]);
    exchange<Mix::Floats>(r[i + 2], r[i + 3]);
    exchange<Mix::Pairs>(r[i], r[i + 2]);
    exchange<Mix::Pairs>(r[i + 1], r[i + 3]);
    std::swap(r[i + 1], r[i + 2]);
  }
  if constexpr (kWidth == 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) exchange<Mix::Quads>(r[i], r[i + 8]);
#pragma GCC unroll 16
    for (int i = 4; i < 8; ++i) std::swap(r[i], r[i + 4]);
  }
}

// Within each four lanes, and the fours among each other: r[c] becomes column c.
BRRR_VX void transpose(Reg (&r)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; kWidth >= 8 && i < kWidth; ++i) {
    if (i % 8 < 4) exchange<Mix::Halves>(r[i], r[i + 4]);
  }
  transpose_joined(r);
}

// The same of rows in memory, row i at row(i). With 512 bits halves are joined as they are loaded,
// which takes no permutation, of which a core starts one a cycle.
template <class F> BRRR_VX void load_transposed(const F& row, Reg (&r)[kWidth]) {
#if BRRR_VX_BYTES == 64
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    const int first = i / 8 * 8 + i % 4, part = i / 4 % 2 * (kWidth / 2);
    r[i] = load_halves(row(first) + part, row(first + 4) + part);
  }
  transpose_joined(r);
#else
  for (int i = 0; i < kWidth; ++i) r[i] = load(row(i));
  transpose(r);
#endif
}

// A whole block. A function of its own: in the loop over blocks g++ 12 would keep the addresses of
// all rows and columns, on the stack.
[[gnu::noinline]] inline void transpose_block(const float* from, int64_t from_row, float* to,
                                              int64_t to_row) {
  Reg r[kWidth];
  load_transposed([=](int i) { return from + i * from_row; }, r);
#pragma GCC unroll 16
  for (int c = 0; c < kWidth; ++c, to += to_row) store(to, r[c]);
}
[[gnu::noinline]] inline void transpose_part(const float* from, int64_t from_row, int height,
                                             int width, float* to, int64_t to_row, int lanes) {
  Reg r[kWidth];
#pragma GCC unroll 16
  for (int c = 0; c < kWidth; ++c, from += from_row) {
    r[c] = c < height ? load_n(from, width) : Reg{};
  }
  transpose(r);
#pragma GCC unroll 16
  for (int c = 0; c < kWidth; ++c, to += to_row) {
    if (c < width) store_n(to, r[c], lanes);
  }
}

// to[c][r] = from[r][c]. With `pad` whole registers are written, zeros after the last row.
inline void transpose(const float* from, int64_t from_row, int64_t rows, int64_t cols, float* to,
                      int64_t to_row, bool pad) {
  for (int64_t i = 0; i < rows; i += kWidth) {
    const int height = static_cast<int>(std::min<int64_t>(kWidth, rows - i));
    for (int64_t j = 0; j < cols; j += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, cols - j));
      const float* const src = from + i * from_row + j;
      float* const dst = to + j * to_row + i;
      if (height == kWidth && width == kWidth)
        transpose_block(src, from_row, dst, to_row);
      else
        transpose_part(src, from_row, height, width, dst, to_row, pad ? kWidth : height);
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
