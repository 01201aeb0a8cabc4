#pragma once
// Transposes matrices in registers, block by block.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ops/vocabulary/gemm_tile.h"

namespace brrr::tile {

// --- a block of floats ---------------------------------------------------------------------------

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
// Half a register from each address, in one instruction: g++ 12 would load both and permute them.
BRRR_VX Reg load_halves(const float* low, const float* high) {
  double __attribute__((vector_size(32))) first, second;
  __builtin_memcpy(&first, low, sizeof first);
  __builtin_memcpy(&second, high, sizeof second);
#ifdef __clang__
  return (Reg)__builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  const auto r = __builtin_shufflevector(first, first, 0, 1, 2, 3, -1, -1, -1, -1);
  return (Reg)__builtin_ia32_insertf64x4_mask(r, second, 1, r, static_cast<unsigned char>(-1));
#endif
}
#endif

// The rest of a transposition once halves of rows are joined in registers.
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

// Transposes within groups of four lanes, and the groups: r[c] becomes column c.
BRRR_VX void transpose(Reg (&r)[kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; kWidth >= 8 && i < kWidth; ++i) {
    if (i % 8 < 4) exchange<Mix::Halves>(r[i], r[i + 4]);
  }
  transpose_joined(r);
}

// The same for rows in memory, row i at row(i). With 512 bits the loads join the halves, which
// saves permutations, of which a core starts one per cycle.
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

// --- a block of anything else --------------------------------------------------------------------

/// A block of T has kSide rows of kSide elements.
template <class T> inline constexpr int kSide = std::min<int>(16, BRRR_VX_BYTES / sizeof(T));
template <class T> using LineOf = typename vx::Part<T, kSide<T> * sizeof(T)>::type;

// Interleaves a and b: their first halves, or their second ones.
template <int from, class V, int... l> BRRR_VX V zip(V a, V b, std::integer_sequence<int, l...>) {
  return __builtin_shufflevector(a, b, (from + l / 2 + l % 2 * int{sizeof...(l)})...);
}

// Each round moves the highest bit of an element's row to its column as the lowest one, and the
// highest one of its column to its row.
template <class T> BRRR_VX void transpose(LineOf<T> (&r)[kSide<T>]) {
  constexpr int n = kSide<T>;
  constexpr std::make_integer_sequence<int, n> all{};
#pragma GCC unroll 4
  for (int round = 1; round < n; round *= 2) {
    LineOf<T> turned[n];
#pragma GCC unroll 8
    for (int i = 0; i < n / 2; ++i) {
      turned[2 * i] = zip<0>(r[i], r[i + n / 2], all);
      turned[2 * i + 1] = zip<n / 2>(r[i], r[i + n / 2], all);
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) r[i] = turned[i];
  }
}

// --- a matrix ------------------------------------------------------------------------------------

// Transposes a whole block. Not inlined: in the loop over blocks g++ 12 would keep the addresses of
// all rows and columns, on the stack.
template <class T>
[[gnu::noinline]] void transpose_block(const T* from, int64_t from_row, T* to, int64_t to_row) {
  constexpr int n = kSide<T>;
  LineOf<T> r[n];
  if constexpr (std::is_same_v<T, float>) {
    load_transposed([=](int i) { return from + i * from_row; }, r);
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) __builtin_memcpy(&r[i], from + i * from_row, sizeof r[i]);
    transpose<T>(r);
  }
#pragma GCC unroll 16
  for (int c = 0; c < n; ++c, to += to_row) __builtin_memcpy(to, &r[c], sizeof r[c]);
}
// The same for a block of `height` rows and `width` columns. The first `whole` columns may be
// stored as whole registers, over what follows them; of the others `lanes` elements are stored.
template <class T>
[[gnu::noinline]] void transpose_part(const T* from, int64_t from_row, int height, int width, T* to,
                                      int64_t to_row, int whole, int lanes) {
  constexpr int n = kSide<T>;
  LineOf<T> r[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i, from += from_row) {
    r[i] = LineOf<T>{};
    if (i >= height) continue;
    if (width == n)
      __builtin_memcpy(&r[i], from, sizeof r[i]);
    else
      r[i] = vx::load_first<LineOf<T>>(from, width);
  }
  if constexpr (std::is_same_v<T, float>)
    transpose(r);
  else
    transpose<T>(r);
#pragma GCC unroll 16
  for (int c = 0; c < n; ++c, to += to_row) {
    if (c < whole)
      __builtin_memcpy(to, &r[c], sizeof r[c]);
    else if (c < width)
      vx::store_first(to, r[c], lanes);
  }
}

/// to[c * to_row + r] = from[r * from_row + c] for r < rows and c < cols. With `pad` columns are
/// padded with zeros to whole registers.
template <class T>
void transpose(const T* from, int64_t from_row, int64_t rows, int64_t cols, T* to, int64_t to_row,
               bool pad) {
  constexpr int n = kSide<T>;
  // With few rows, whose columns are contiguous in `to`: a whole register runs over into the next
  // columns, which are written later.
  const int64_t follow = rows == to_row && rows < n ? cols - (n - 1) / rows : 0;
  for (int64_t i = 0; i < rows; i += n) {
    const int height = static_cast<int>(std::min<int64_t>(n, rows - i));
    for (int64_t j = 0; j < cols; j += n) {
      const int width = static_cast<int>(std::min<int64_t>(n, cols - j));
      const T* const src = from + i * from_row + j;
      T* const dst = to + j * to_row + i;
      if (height == n && width == n) {
        transpose_block(src, from_row, dst, to_row);
      } else {
        const auto whole = std::clamp<int64_t>(pad ? width : follow - j, 0, width);
        transpose_part(src, from_row, height, width, dst, to_row, static_cast<int>(whole), height);
      }
    }
  }
}

}  // namespace brrr::tile
