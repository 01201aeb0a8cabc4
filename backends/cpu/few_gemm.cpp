// Products of a few rows with a matrix that is contiguous along k, such as one token's state and a
// weight [outputs, inputs]: bound by reading the matrix once.
#include "backends/cpu/gemm.h"

#include <algorithm>

#include "ops/vocabulary/gemm_tile.h"
#include "ops/vocabulary/transpose.h"

namespace brrr::cpu {

using namespace tile;  // NOLINT: load, store and transposition

namespace {

constexpr int64_t kFewestTerms = 32;
constexpr int64_t kFar = 1 << 19;      // Elements of a matrix that exceeds L2.
constexpr int64_t kTransposeCost = 4;  // Transposing a square costs like multiplying 4 rows by it.

// C = A op(B) or, where A is the large operand, C^T = op(B)^T A^T: `rows` rows of the small operand
// times `n` rows of the large one, which is contiguous along k.
struct Few {
  int64_t rows, n, k;
  const float* a;
  int64_t a_row, a_k;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row, c_col;  // Strides of C per row of the small and of the large operand.
  bool add;

  explicit Few(const Gemm& g) : k(g.k), c(static_cast<float*>(g.c)), add(g.add) {
    const bool swap = !reads_right(g);
    const Gemm s = swap ? swapped(g) : g;
    rows = s.m, n = s.n;
    a = static_cast<const float*>(s.a), b = static_cast<const float*>(s.b);
    a_row = s.trans_a ? 1 : s.lda, a_k = s.trans_a ? s.lda : 1;
    b_row = s.ldb;
    c_row = swap ? 1 : g.ldc, c_col = swap ? g.ldc : 1;
  }
  static bool reads_right(const Gemm& g) { return g.trans_b && g.m <= kFewRows; }
};

// Prefetches the rows of the next kWidth columns while the terms from `from` on are added, in
// memory order: prefetching the same terms of each row would often step by multiples of 4 KB, which
// map to the same cache sets.
struct NextColumns {
  const float* at;
  const float* end;  // Of the row that `at` is in.
  int64_t row, gap;  // Distance to the next row from the start and from the end of this one.

  NextColumns(const Few& f, int64_t col, int64_t from)
      : end(f.b + (col + kWidth + from * kWidth / f.k) * f.b_row + f.k),
        row(f.b_row),
        gap(f.b_row - f.k) {
    at = end - f.k + from * kWidth % f.k;
  }
  // Line i of kWidth.
  __attribute__((always_inline)) void prefetch(int i) const { vx::prefetch<2>(at + i * kWidth); }
  __attribute__((always_inline)) void advance() {
    at += kWidth * kWidth;
    for (; at >= end; end += row) at += gap;
  }
};

// Adds the terms [from, to) of `cols` columns to sum[0..rows). One square of the matrix at a time
// is transposed in registers, so that its rows become lanes; lanes beyond `cols` repeat the last.
template <int rows, bool all_columns, bool far>
BRRR_VX void add_terms(const Few& f, int64_t col, int64_t cols, int64_t from, int64_t to,
                       Reg* sum) {
  const float* b = f.b + col * f.b_row + from;
  const float* a = f.a + from * f.a_k;
  const auto row = [&](int j) {
    return b + (all_columns ? j : std::min<int64_t>(j, cols - 1)) * f.b_row;
  };
  Reg square[kWidth];
  NextColumns next(f, col, from);
  int64_t k = from;
  for (; k + kWidth <= to; k += kWidth, b += kWidth, a += kWidth * f.a_k) {
    load_transposed(row, square);
#pragma GCC unroll 16
    for (int t = 0; t < kWidth; ++t) {
      if (far) next.prefetch(t);  // Not needed for a matrix in L2.
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        sum[r] = fma(splat(a[r * f.a_row + t * f.a_k]), square[t], sum[r]);
      }
    }
    if (far) next.advance();
  }
  if (k == to) return;
  const auto terms = static_cast<int>(to - k);
#pragma GCC unroll 16
  for (int j = 0; j < kWidth; ++j) square[j] = load_n(row(j), terms);
  transpose(square);
#pragma GCC unroll 16
  for (int t = 0; t < kWidth; ++t) {
    for (int r = 0; t < terms && r < rows; ++r) {
      sum[r] = fma(splat(a[r * f.a_row + t * f.a_k]), square[t], sum[r]);
    }
  }
}

// One long dot product, kWidth of its chains at a time, one per lane. Returns how many terms were
// added to `total`.
int64_t add_chains(const Few& f, float& total) {
  int64_t from = 0;
  for (; from + kWidth * kChain <= f.k; from += kWidth * kChain) {
    Reg sum{};
    for (int64_t k = from; k < from + kChain; k += kWidth) {
      Reg a[kWidth], b[kWidth];
      load_transposed([&](int j) { return f.a + k + j * kChain; }, a);
      load_transposed([&](int j) { return f.b + k + j * kChain; }, b);
#pragma GCC unroll 16
      for (int t = 0; t < kWidth; ++t) sum = fma(a[t], b[t], sum);
    }
    for (int j = 0; j < kWidth; ++j) total = from + j ? total + sum[j] : sum[0];
  }
  return from;
}

template <int rows> void run(const Few& f, int64_t begin, int64_t end) {
  for (int64_t col = begin; col < end; col += kWidth) {
    const auto cols = static_cast<int>(std::min<int64_t>(kWidth, f.n - col));
    float* const c = f.c + col * f.c_col;
    const int64_t chain = f.k > kLongestChain ? kChain : f.k;
    Reg total[rows] = {};
    for (int r = 0; f.add && r < rows; ++r) {
      for (int j = 0; j < cols; ++j) total[r][j] = c[r * f.c_row + j * f.c_col];
    }
    int64_t from = 0;
    if (f.n == 1 && rows == 1 && chain < f.k && f.a_k == 1 && !f.add) {
      float sum = 0;
      from = add_chains(f, sum);
      total[0][0] = sum;
    }
    for (; from < f.k; from += chain) {
      Reg sum[rows] = {};
      if (from == 0) std::copy_n(total, rows, sum);
      const int64_t to = std::min(from + chain, f.k);
      if (cols < kWidth)
        add_terms<rows, false, false>(f, col, cols, from, to, sum);
      else if (f.n * f.k > kFar)
        add_terms<rows, true, true>(f, col, cols, from, to, sum);
      else
        add_terms<rows, true, false>(f, col, cols, from, to, sum);
      for (int r = 0; r < rows; ++r) total[r] = from ? total[r] + sum[r] : sum[r];
    }
    for (int r = 0; r < rows; ++r) {
      if (f.c_col == 1) {
        store_n(c + r * f.c_row, total[r], cols);
      } else {
        for (int j = 0; j < cols; ++j) c[r * f.c_row + j * f.c_col] = total[r][j];
      }
    }
  }
}

}  // namespace

// Fitted to measurements on Zen 4. The alternative, small_gemm's tiles, packs a right operand but
// not a left one, which is therefore taken only where few lanes and terms of squares go unused.
bool has_few_rows(const Gemm& g) {
  if (g.m == 1 && g.n == 1) return g.k > kLongestChain && (g.trans_b || !g.trans_a);
  if (Few::reads_right(g)) return g.k >= kWidth * std::max<int64_t>(g.m, 3);
  if (g.trans_a || g.n > kFewRows || g.k < kFewestTerms) return false;
  const auto squares = [](int64_t size) { return (size + kWidth - 1) / kWidth; };
  return squares(g.m) * (squares(g.k) + 1) * kWidth * (kTransposeCost + g.n) <=
         std::max<int64_t>(g.m, 4) * g.k;
}

void few_gemm(const Gemm& g) {
  const Few f(g);
  static constexpr auto runs = []<size_t... r>(std::index_sequence<r...>) {
    return std::array{run<r + 1>...};
  }
  (std::make_index_sequence<kFewRows>{});
  // A thread gets at least some 4 us of work.
  const int64_t grain = std::max<int64_t>(1, (1 << 17) / (kWidth * f.k));
  parallel_for((f.n + kWidth - 1) / kWidth, grain, [&](int64_t begin, int64_t end) {
    runs[static_cast<size_t>(f.rows - 1)](f, begin * kWidth, std::min(end * kWidth, f.n));
  });
}

}  // namespace brrr::cpu
