#include "backends/cpu/gemm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/threads.h"

using namespace brrr;
using test::Threads;

namespace {

struct Shape {
  int64_t m, n, k;
};

// Small, odd and just around tiles (8 x 48, 6 x 16), blocks of a transpose, and the copied panels
// of 256 and more than 512 rows; more than a block of 512 rows, and of 128 K results; right
// operands that are prefetched, and sums longer than a chain.
const std::vector<Shape> kShapes = {
    {1, 1, 1},      {1, 1, 7},       {2, 3, 5},     {1, 200, 31},   {2, 129, 300},  {3, 17, 33},
    {4, 64, 16},    {5, 47, 40},     {7, 49, 257},  {8, 48, 64},    {9, 95, 24},    {16, 16, 16},
    {17, 97, 130},  {33, 31, 70},    {48, 8, 256},  {49, 10, 128},  {64, 64, 513},  {70, 100, 700},
    {130, 5, 90},   {200, 1, 65},    {97, 24, 260}, {31, 160, 600}, {530, 70, 520}, {520, 270, 300},
    {40, 60, 1300}, {70, 1100, 520}, {9, 50, 8500}, {1, 33, 8500},  {30, 2, 8500},  {1, 1, 13000}};

struct Matrix {  // Row-major with leading dimension `ld`, `shift` floats past an aligned address.
  int64_t rows, cols, ld;
  std::vector<float> data;
  size_t shift;
  Matrix(int64_t r, int64_t c, int64_t gap = 0, size_t off = 0)
      : rows(r),
        cols(c),
        ld(c + gap),
        data(static_cast<size_t>(r * (c + gap)) + off, -77.0f),
        shift(off) {}
  float* at(int64_t i, int64_t j) { return data.data() + shift + i * ld + j; }
  const float* at(int64_t i, int64_t j) const { return data.data() + shift + i * ld + j; }
};

// The logical operand [rows, cols], stored row-major or transposed.
Matrix stored(const Matrix& x, bool transposed, int64_t gap, size_t shift) {
  Matrix r(transposed ? x.cols : x.rows, transposed ? x.rows : x.cols, gap, shift);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.cols; ++j) (transposed ? *r.at(j, i) : *r.at(i, j)) = *x.at(i, j);
  }
  return r;
}

Matrix random_matrix(int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> value(-1.0f, 1.0f);
  Matrix r(rows, cols);
  for (float& x : r.data) x = value(engine);
  return r;
}

using Kernel = void (*)(const Gemm&);

Matrix product(Kernel kernel, const Matrix& a, const Matrix& b, bool trans_a, bool trans_b,
               int64_t gap = 0, size_t shift = 0) {
  const Matrix left = stored(a, trans_a, gap, shift), right = stored(b, trans_b, gap, shift);
  Matrix c(a.rows, b.cols, gap, shift);
  kernel({kFloat32, trans_a, trans_b, a.rows, b.cols, a.cols, left.at(0, 0), left.ld,
          right.at(0, 0), right.ld, c.at(0, 0), c.ld});
  for (size_t i = 0; i < shift; ++i) CHECK(c.data[i] == -77.0f);
  for (int64_t i = 0; i < c.rows; ++i) {  // The padding between rows is not written.
    for (int64_t j = c.cols; j < c.ld; ++j) CHECK(*c.at(i, j) == -77.0f);
  }
  return c;
}

bool same_bits(const Matrix& x, const Matrix& y) {
  for (int64_t i = 0; i < x.rows; ++i) {
    const auto bytes = static_cast<size_t>(x.cols) * sizeof(float);
    if (std::memcmp(x.at(i, 0), y.at(i, 0), bytes) != 0) return false;
  }
  return true;
}

// |c - double reference| against the error bound k * eps * sum |a b| of a chain of k operations.
bool close(const Matrix& a, const Matrix& b, const Matrix& c) {
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.cols; ++j) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < a.cols; ++k) {
        const double term = static_cast<double>(*a.at(i, k)) * static_cast<double>(*b.at(k, j));
        sum += term;
        size += std::abs(term);
      }
      const double bound = static_cast<double>(a.cols) * 0x1p-24 * size + 1e-38;
      if (!(std::abs(static_cast<double>(*c.at(i, j)) - sum) <= bound)) return false;
    }
  }
  return true;
}

// The definition: one chain of fused multiply-adds from zero; above kLongestChain terms the sum of
// chains of 256.
Matrix chain(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.cols; ++j) {
      const int64_t length = a.cols > cpu::kLongestChain ? 256 : a.cols;
      for (int64_t k = 0; k < a.cols;) {
        const bool first = k == 0;
        const int64_t end = std::min(k + length, a.cols);
        float sum = 0;
        for (; k < end; ++k) sum = std::fma(*a.at(i, k), *b.at(k, j), sum);
        *c.at(i, j) = first ? sum : *c.at(i, j) + sum;
      }
    }
  }
  return c;
}

template <class F> void for_all_transposes(const F& f) {
  for (bool trans_a : {false, true}) {
    for (bool trans_b : {false, true}) {
      CAPTURE(trans_a);
      CAPTURE(trans_b);
      f(trans_a, trans_b);
    }
  }
}

}  // namespace

TEST_CASE("gemm: correct for all shapes and transposes, whichever kernel is chosen") {
  for (const Shape& s : kShapes) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    CAPTURE(s.k);
    const Matrix a = random_matrix(s.m, s.k, 1), b = random_matrix(s.k, s.n, 2);
    for_all_transposes([&](bool ta, bool tb) {
      const Matrix c = product(cpu::gemm, a, b, ta, tb);
      CHECK(close(a, b, c));
      CHECK(same_bits(c, product(cpu::gemm, a, b, ta, tb, 3, 1)));
    });
  }
}

TEST_CASE("small gemm: each element is one chain of fused multiply-adds, whatever the layout") {
  for (const Shape& s : kShapes) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    CAPTURE(s.k);
    const Matrix a = random_matrix(s.m, s.k, 3), b = random_matrix(s.k, s.n, 4);
    const Matrix expected = chain(a, b);
    for_all_transposes([&](bool ta, bool tb) {
      CHECK(same_bits(product(cpu::small_gemm, a, b, ta, tb), expected));
      CHECK(same_bits(product(cpu::small_gemm, a, b, ta, tb, 5, 3), expected));
    });
  }
}

TEST_CASE("small gemm: a right operand that was copied once serves all products of its sizes") {
  const Shape shapes[] = {{256, 300, 128}, {40, 60, 1300}, {70, 1100, 520}, {64, 97, 33}};
  size_t copied = 0;
  for (const Shape& s : shapes) {
    for_all_transposes([&](bool ta, bool tb) {
      CAPTURE(s.k);
      const Matrix b = random_matrix(s.k, s.n, 2), right = stored(b, tb, 3, 1);
      const std::vector<float> zeros(right.data.size());
      std::vector<char> copy;
      for (unsigned seed : {1, 9}) {
        const Matrix a = random_matrix(s.m, s.k, seed), left = stored(a, ta, 0, 0);
        Matrix c(s.m, s.n);
        Gemm g{kFloat32,       ta,       tb,         s.m, s.n, s.k, left.at(0, 0), left.ld,
               right.at(0, 0), right.ld, c.at(0, 0), c.ld};
        if (copy.empty()) {
          copy.resize(static_cast<size_t>(host::packed_right_bytes(g)));
          if (copy.empty()) return;
          host::pack_right(g, copy.data());
          ++copied;
        }
        g.packed = copy.data();
        g.b = zeros.data();  // Only the copy is read.
        cpu::small_gemm(g);
        CHECK(same_bits(c, chain(a, b)));
      }
    });
  }
  CHECK(copied >= 4);
}

TEST_CASE("gemm: the bits do not depend on threads") {
  const Shape shapes[] = {{32, 256, 300}, {256, 40, 128},  {200, 300, 64},
                          {64, 130, 700}, {300, 96, 1100}, {4, 2000, 300}};
  for (const Shape& s : shapes) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    CAPTURE(s.k);
    const Matrix a = random_matrix(s.m, s.k, 5), b = random_matrix(s.k, s.n, 6);
    for_all_transposes([&](bool ta, bool tb) {
      for (Kernel kernel : {Kernel{cpu::gemm}, Kernel{cpu::small_gemm}}) {
        Threads one(1);
        const Matrix expected = product(kernel, a, b, ta, tb);
        for (int n : {2, 3, 5}) {
          Threads many(n);
          CHECK(same_bits(product(kernel, a, b, ta, tb), expected));
        }
      }
    });
  }
}

TEST_CASE("gemm: NaN and infinity propagate, 0 * inf is NaN, and neighbours stay clean") {
  const float inf = std::numeric_limits<float>::infinity();
  const Shape shapes[] = {{33, 61, 40}, {64, 48, 16}, {1, 100, 20}, {9, 10, 9}};
  for (const Shape& s : shapes) {
    Matrix a = random_matrix(s.m, s.k, 7), b = random_matrix(s.k, s.n, 8);
    std::fill(a.at(0, 0), a.at(0, 0) + s.k, 0.0f);
    *b.at(3, s.n - 1) = inf;
    if (s.m > 2) *a.at(s.m - 1, 5) = std::numeric_limits<float>::quiet_NaN();
    for_all_transposes([&](bool ta, bool tb) {
      for (Kernel kernel : {Kernel{cpu::gemm}, Kernel{cpu::small_gemm}}) {
        const Matrix c = product(kernel, a, b, ta, tb);
        CHECK(std::isnan(*c.at(0, s.n - 1)));
        CHECK(*c.at(0, 0) == 0.0f);
        if (s.m > 2) {
          CHECK(std::abs(*c.at(1, s.n - 1)) == inf);
          CHECK(std::isfinite(*c.at(1, 0)));
          CHECK(std::isnan(*c.at(s.m - 1, 0)));
        }
      }
    });
  }
}

TEST_CASE("gemm: empty dimensions") {
  float c[6] = {1, 2, 3, 4, 5, 6};
  const float x[6] = {};
  cpu::gemm({kFloat32, false, false, 0, 3, 2, x, 2, x, 3, c, 3});
  cpu::gemm({kFloat32, false, true, 3, 0, 2, x, 2, x, 2, c, 3});
  CHECK(c[0] == 1);
  cpu::gemm({kFloat32, false, false, 2, 2, 0, x, 0, x, 2, c, 3});  // Empty sums, row by row.
  CHECK(std::vector<float>(c, c + 6) == std::vector<float>{0, 0, 3, 0, 0, 6});
}

TEST_CASE("small gemm: the choice depends on shape and transposes only") {
  std::vector<float> memory(1 << 16);
  Gemm g{kFloat32, false, true, 32, 64, 96, memory.data(), 96, memory.data(), 96, nullptr, 64};
  const bool taken = cpu::use_small_gemm(g);
  g.lda = 128;
  g.ldb = 100;
  g.ldc = 77;
  g.a = memory.data() + 1;
  g.b = memory.data() + 3;
  CHECK(cpu::use_small_gemm(g) == taken);
  g.dtype = kFloat64;
  CHECK(!cpu::use_small_gemm(g));
}
