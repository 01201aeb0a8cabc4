// What shares a kernel: as much as fits, whatever the number of ops in between.
#include <doctest/doctest.h>

#include "brrr.h"
#include "tests/fuzz_steps.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Tensors = std::vector<Tensor>;

// The kernels of a replay, whose results are eager's bits.
template <class F> uint64_t kernels(const F& fn) {
  const Tensors eager = fn();
  auto step = brrr::step(fn, {.require_graph = true, .build_at_first_call = true});
  const Tensors graph = step();
  REQUIRE(eager.size() == graph.size());
  for (size_t k = 0; k < eager.size(); ++k) {
    CAPTURE(k);
    CHECK(fuzz::bits_of(eager[k]) == fuzz::bits_of(graph[k]));
  }
  CHECK(step.stats().fallbacks == 0);
  return step.stats().kernels_per_replay;
}

Tensors many(int n, const IntList& sizes) {
  Tensors list;
  for (int k = 0; k < n; ++k) list.push_back(randn(sizes));
  return list;
}

}  // namespace

TEST_CASE("fusion: a chain is one kernel, however many registers its values pass through") {
  const test::TempCache cache;
  const Tensor x = randn({3, 19}), a = randn({19}), b = randn({3, 1});
  const auto chain = [&](int n) {
    return kernels([&] {
      Tensor y = x;
      for (int k = 0; k < n; ++k) y = y * 0.999;
      return Tensors{y};
    });
  };
  CHECK(chain(12) == 1);
  CHECK(chain(200) == 1);
  CHECK(chain(300) == 2);
  CHECK(kernels([&] {
          Tensor y = x;
          for (int k = 0; k < 60; ++k) y = y * a + b;
          return Tensors{y};
        }) == 1);
}

TEST_CASE("fusion: values in memory bound a kernel, whether read or written") {
  const test::TempCache cache;
  const Tensors in = many(100, {19});
  const uint64_t sum = kernels([&] {
    Tensor y = in[0];
    for (const Tensor& t : in) y = y * 0.5 + t;
    return Tensors{y};
  });
  CHECK(sum > 1);
  CHECK(sum <= 5);
  const uint64_t copies = kernels([&] {
    Tensors out;
    for (int k = 0; k < 100; ++k) out.push_back(in[0] * (k + 1.0));
    return out;
  });
  CHECK(copies > 1);
  CHECK(copies <= 5);
}

TEST_CASE("fusion: strided operands with numbers of their own fit what a kernel is handed") {
  const test::TempCache cache;
  const Tensors in = many(60, {5, 4, 3, 2});
  const uint64_t n = kernels([&] {
    Tensor y = zeros({2, 3, 4, 5});
    for (size_t k = 0; k < in.size(); ++k) {
      const double low = -1.0 - static_cast<double>(k);
      y = (y + in[k].permute({3, 2, 1, 0}).clamp(low, 2.0)) * 0.5;
    }
    return Tensors{y};
  });
  CHECK(n > 1);
  CHECK(n <= 5);
}
