// Rotary embedding: values, gradients, far positions, layouts, errors.

#include <cmath>

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

Tensor normal(const IntList& sizes, DType t = kFloat32) { return randn(sizes).to(t); }

}  // namespace

TEST_CASE("rotary: values, and gradients, which are the inverse rotation") {
  manual_seed(11);
  for (int64_t width : {2, 6, 16, 40}) {
    const int64_t half = width / 2;
    const Tensor x = normal({3, 4, width}, kFloat64), at = tensor({0, 5, 100000, -7});
    const Tensor y = rotary_embedding(x, at, 500.0);
    const auto from = x.to_vector<double>(), to = y.to_vector<double>();
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t t = 0; t < 4; ++t) {
        for (int64_t i = 0; i < half; ++i) {
          const double frequency =
              std::pow(500.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
          const double angle = at.select(0, t).item<double>() * frequency;
          const auto k = static_cast<size_t>((m * 4 + t) * width + i),
                     l = k + static_cast<size_t>(half);
          const double c = std::cos(angle), s = std::sin(angle);
          CHECK(std::fabs(to[k] - (from[k] * c - from[l] * s)) < 1e-12);
          CHECK(std::fabs(to[l] - (from[l] * c + from[k] * s)) < 1e-12);
        }
      }
    }
    const auto r = gradcheck([&](const Tensors& in) { return rotary_embedding(in[0], at, 500.0); },
                             {x}, {.tolerance = 5e-6, .second_order = true});
    CHECK_MESSAGE(r.ok, r.report);
    // Float32 is as accurate at far positions as at near ones.
    const Tensor far = tensor({0, 1000000, int64_t{1} << 40, -123456789});
    check_close(rotary_embedding(x.to(kFloat32), far), rotary_embedding(x, far), 1e-6);
    check_close(rotary_embedding(x.to(kBFloat16), far), rotary_embedding(x, far), 2e-2);
  }
}

TEST_CASE("rotary: its result can be written in place, in any layout of its operand") {
  const Tensor w = normal({2, 4, 3, 8}).set_requires_grad();
  for (const bool dense : {false, true}) {
    const Tensor x = w.transpose(1, 2), y = rotary_embedding(dense ? x.contiguous() : x, arange(4));
    y.mul_(2.0);
    CHECK(y.requires_grad());
  }
}

TEST_CASE("rotary: products depend on the distance of positions alone") {
  manual_seed(12);
  const Tensor q = normal({1, 64}), k = normal({1, 64});
  auto product = [&](int64_t i, int64_t j) {
    auto at = [](int64_t p) { return tensor(std::vector<int64_t>{p}); };
    return (rotary_embedding(q, at(i)) * rotary_embedding(k, at(j))).sum().item<double>();
  };
  for (int64_t distance : {0, 1, 17, 1000}) {
    const double near = product(distance, 0);
    for (int64_t shift : {3, 4095, 1000000}) {
      CHECK(std::fabs(product(distance + shift, shift) - near) < 2e-5);
    }
  }
}

TEST_CASE("rotary: layouts") {
  manual_seed(13);
  const Tensor x = normal({2, 7, 3, 8}), at = arange(14).slice(0, 0, 14, 2);
  const Tensor heads = x.transpose(1, 2);
  const Tensor want = rotary_embedding(heads.contiguous(), at.contiguous());
  check_same(rotary_embedding(heads, at), want);
  const Tensor columns = heads.transpose(-2, -1).contiguous().transpose(-2, -1);
  check_same(rotary_embedding(columns, at), want);
  CHECK(want.is_contiguous());
  CHECK(rotary_embedding(zeros({2, 0, 4}), zeros({0}, kInt64)).numel() == 0);
}

TEST_CASE("rotary: errors name the op, the shapes and the remedy") {
  const Tensor x = zeros({2, 4, 6});
  CHECK(error_of([&] {
          rotary_embedding(zeros({2, 3, 5}), arange(3));
        }) ==
        "rotary_embedding: takes [.., length, width] with an even width, got float32[2, 3, 5]");
  CHECK(error_of([&] { rotary_embedding(x, arange(5)); }) ==
        "rotary_embedding: positions are int64[5], but float32[2, 4, 6] needs int64[4], one for "
        "each row");
  CHECK(error_of([&] { rotary_embedding(x, arange(4), 0); }) ==
        "rotary_embedding: base must be positive and finite, got 0");
}
