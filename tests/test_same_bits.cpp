// The definition of "the same bits": 0 differs from -0, all NaNs are equal.
#include <brrr/brrr.h>

#include <cstdint>

#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

template <class U> Tensor of_bits(const std::vector<U>& bits, DType t) {
  return from_blob(static_cast<const void*>(bits.data()), {static_cast<int64_t>(bits.size())}, t);
}

// The first two are NaNs (of other signs and payloads), then infinity, the largest number, -0.
template <class U> void check_nans(DType t, U infinity, int mantissa) {
  const U quiet = static_cast<U>(infinity | U{1} << (mantissa - 1));
  const U sign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  const auto largest = static_cast<U>(infinity - 1);
  const std::vector<U> bits = {quiet, static_cast<U>(infinity | 1), infinity, largest, sign};
  std::vector<U> other = bits;
  other[0] = static_cast<U>(quiet | sign | 5);
  other[1] = static_cast<U>(~U{0});
  const Tensor a = of_bits(bits, t);
  CHECK(same_bits(a, of_bits(other, t)));
  CHECK(comparable_bytes(a) == comparable_bytes(of_bits(other, t)));
  for (size_t i = 0; i < bits.size(); ++i) {
    other = bits;
    other[i] = static_cast<U>(U{1} << (mantissa - 2));
    CHECK_FALSE(same_bits(a, of_bits(other, t)));
  }
  other = bits;
  other[2] |= sign;
  CHECK_FALSE(same_bits(a, of_bits(other, t)));
  other = bits;
  other[4] = 0;
  CHECK_FALSE(same_bits(a, of_bits(other, t)));
}

}  // namespace

TEST_CASE("same bits: NaNs of every dtype" * doctest::test_suite("host")) {
  check_nans<uint64_t>(kFloat64, 0x7ff0000000000000u, 52);
  check_nans<uint32_t>(kFloat32, 0x7f800000u, 23);
  check_nans<uint16_t>(kBFloat16, 0x7f80u, 7);
  check_nans<uint16_t>(kFloat16, 0x7c00u, 10);
}

TEST_CASE("same bits: dtypes, sizes, layouts and lists") {
  const Tensor a = arange(6).to(kFloat32).view({2, 3});
  CHECK(same_bits(a, a.t().clone().t()));
  CHECK_FALSE(same_bits(a, a.view({3, 2})));
  CHECK_FALSE(same_bits(a, a.to(kFloat64)));
  CHECK_FALSE(same_bits(a, Tensor()));
  CHECK(same_bits(Tensor(), Tensor()));
  CHECK(same_bits(zeros({0, 2}), zeros({0, 2})));
  CHECK(same_bits(std::vector<Tensor>{a, Tensor()}, std::vector<Tensor>{a.clone(), Tensor()}));
  CHECK_FALSE(same_bits(std::vector<Tensor>{a}, std::vector<Tensor>{a, a}));
  CHECK_FALSE(same_bits(std::vector<Tensor>{a}, std::vector<Tensor>{a + 1.0}));
  auto step = brrr::step([](const Tensor& x) {
    same_bits(x, x);
    return x + 1.0;
  });
  CHECK(contains(error_of([&] { step(a); }), "inside a graph-mode step"));
}

TEST_CASE("same bits: which NaN a step returns is unspecified, and verify_every accepts any" *
          doctest::test_suite("host")) {
  // NaNs of both signs and many payloads in all combinations, in every floating dtype.
  std::vector<uint16_t> bits;
  for (const uint16_t b : {0x7fc0, 0xffc0, 0x7fc5, 0xffc9, 0x7f80, 0xff80, 0x3f80, 0x8000}) {
    bits.push_back(b);
  }
  const Tensor some = of_bits(bits, kBFloat16);
  for (const DType t : {kBFloat16, kFloat16, kFloat32, kFloat64}) {
    CAPTURE(std::string(name(t)));
    const Tensor x = some.to(t).unsqueeze(0).expand({8, 8}).clone(), y = x.t().clone();
    Tensor state = zeros({8, 8}, t);
    const auto body = [&](const Tensor& a, const Tensor& b) {
      state.add_(a * b - b * a);
      const Tensor c = (a + b) * (b - a) / (a * a - b * b);
      return std::vector<Tensor>{c, -c + a.exp() * b, (c * c + a).sum(), maximum(c, a) + b};
    };
    auto step = brrr::step(body, {.verify_every = 1, .build_at_first_call = true});
    for (int i = 0; i < 3; ++i) {
      const std::vector<Tensor> got = step(x, y);
      const Tensor now = state.clone();
      state.zero_();
      CHECK(same_bits(got, body(x, y)));
      CHECK(same_bits(now, state));
      state.zero_();
    }
    CHECK(step.stats().verified == 3);
  }
}
