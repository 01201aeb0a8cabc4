// Transposition in registers: the written elements, and the untouched rest.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "brrr.h"
#include "ops/vocabulary/transpose.h"

namespace {

using namespace brrr;

// Transposes a matrix with `gap` elements between its rows into one with `to_gap`. Returns whether
// all elements are in place and everything between and behind them is unchanged.
template <class T> bool turns(int64_t rows, int64_t cols, int64_t gap, int64_t to_gap) {
  const int64_t step = cols + gap, to_step = rows + to_gap;
  std::vector<T> from(static_cast<size_t>((rows - 1) * step + cols));  // Exact size, for overreads.
  std::iota(from.begin(), from.end(), T{3});
  std::vector<T> to(static_cast<size_t>(cols * to_step) + 64, T{1}), want = to;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      want[static_cast<size_t>(c * to_step + r)] = from[static_cast<size_t>(r * step + c)];
    }
  }
  tile::transpose(from.data(), step, rows, cols, to.data(), to_step, false);
  return to == want;
}

template <class T> void turn_all() {
  for (int64_t rows = 1; rows <= 35; ++rows) {
    for (int64_t cols : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 70}) {
      for (int64_t gap : {0, 1, 5}) {
        CAPTURE(rows);
        CAPTURE(cols);
        CAPTURE(gap);
        CHECK(turns<T>(rows, cols, gap, 0));
        CHECK(turns<T>(rows, cols, 0, gap));
      }
    }
  }
}

}  // namespace

TEST_CASE("transposition: every width of an element, every height, nothing beyond") {
  turn_all<float>();
  turn_all<double>();
  turn_all<uint16_t>();
  turn_all<uint8_t>();
}

TEST_CASE("transposition: a copy of any layout has the elements, of 16 bits every bit") {
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16, kInt64, kInt32, kUInt8, kBool}) {
    for (int64_t n : {1, 2, 3, 8, 16, 17, 40}) {
      CAPTURE(name(t));
      CAPTURE(n);
      const int64_t m = 3000 / n;
      const Tensor x = remainder(arange(n * m * 2), t == kBool ? 2 : 199).to(t).view({n, m, 2});
      for (const IntList& order : {IntList{1, 0, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}}) {
        const Tensor y = x.permute(order), dense = y.contiguous();
        const auto got = dense.to(kInt64).to_vector<int64_t>();
        const auto want = y.to(kInt64).to_vector<int64_t>();
        CHECK(got == want);
        CHECK(dense.is_contiguous());
      }
    }
  }
  // All patterns, signalling NaNs too: dense, in padded rows, transposed, and repeatedly.
  std::vector<uint16_t> bits(1 << 16);
  std::iota(bits.begin(), bits.end(), uint16_t{0});
  for (DType t : {kBFloat16, kFloat16}) {
    CAPTURE(name(t));
    const auto bits_of = [](const Tensor& x) {
      const auto* p = reinterpret_cast<const uint16_t*>(x.impl()->data());
      return std::vector<uint16_t>(p, p + x.numel());
    };
    Tensor x = empty({256, 256}, t);
    std::memcpy(x.impl()->data(), bits.data(), bits.size() * 2);
    CHECK(bits_of(x.clone()) == bits);
    CHECK(bits_of(x.t().contiguous().t().contiguous()) == bits);
    Tensor apart = empty({256, 300}, t);
    apart.narrow(1, 7, 256).copy_(x);
    CHECK(bits_of(apart.narrow(1, 7, 256).contiguous()) == bits);
    const auto many = bits_of(x.view({-1, 1}).expand({1 << 16, 5}).contiguous());
    bool same = true;
    for (size_t i = 0; i < many.size(); ++i) same &= many[i] == bits[i / 5];
    CHECK(same);
    CHECK(bits_of(full({70000}, 0.1, t)) ==
          std::vector<uint16_t>(70000, bits_of(tensor({0.1f}).to(t))[0]));
    x.fill_(0.1);
    CHECK(bits_of(x) == std::vector<uint16_t>(1 << 16, bits_of(tensor({0.1f}).to(t))[0]));
  }
}
