// Gradients of q, k and v are written into the gradient of what they are slices of.
#include <doctest/doctest.h>

#include "brrr.h"
#include "tests/kernels.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Tensors = std::vector<Tensor>;
using test::kernels;

constexpr int64_t kHeads = 4;

// A slice of [batch, length, 3 width] as heads.
Tensor heads(const Tensor& all, int64_t which) {
  const int64_t width = all.size(2) / 3;
  return all.narrow(2, which * width, width)
      .reshape({all.size(0), all.size(1), kHeads, width / kHeads})
      .transpose(1, 2);
}

// The gradient of self-attention from its projection, after `change` has seen q, k and v's.
template <class F> Tensors gradient(const Tensor& x, const F& change) {
  Tensor all = (x * 1.5).detach().set_requires_grad();
  Tensor q = heads(all, 0), k = heads(all, 1), v = heads(all, 2);
  change(q, k, v);
  const Tensor y = scaled_dot_product_attention(q, k, v, {.causal = true});
  y.backward(y.detach() + 1.0);
  return {all.grad() * 2.0};
}

}  // namespace

TEST_CASE("written joined: attention's gradients need no kernel that joins them" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  manual_seed(1);
  for (const IntList& size : {IntList{3, 20, 48}, {1, 7, 12}, {2, 64, 384}}) {
    CAPTURE(to_string(size));
    const Tensor x = randn(size);
    const auto kept = [](auto&, auto&, auto&) {};
    const auto apart = [](Tensor&, Tensor& k, Tensor&) { k = k * 2.0; };
    // Scaling, both directions of attention, the gradient's kernels.
    const uint64_t joined = kernels([&] { return gradient(x, kept); });
    // Of k, scaled, the gradient is made by another kernel: all three are copied.
    CHECK(kernels([&] { return gradient(x, apart); }) > joined + 1);
    const Tensor half = x.to(kBFloat16);
    kernels([&] { return gradient(half, kept); });
    const Tensor twice = x.to(kFloat64);
    CHECK(kernels([&] { return gradient(twice, kept); }) == joined);
  }
}

TEST_CASE("written joined: a leaf keeps the gradient, read before it is made anew" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  for (const double budget : {0.0, 0.5}) {
    std::vector<float> seen[2];
    for (const Mode mode : {Mode::Eager, Mode::Graph}) {
      manual_seed(3);
      Tensor x = randn({4, 32, 48}).set_requires_grad();
      auto step = brrr::step(
          [&] {
            const Tensor old = x.grad().defined() ? x.grad().sum() : full({}, 0.0);
            x.set_grad({});
            const Tensor y = scaled_dot_product_attention(heads(x, 0), heads(x, 1), heads(x, 2));
            (y * y).sum().backward();
            const NoGradGuard guard;
            x.sub_(x.grad() * 0.01);
            return old;
          },
          {.mode = mode, .memory_budget = budget, .part_bytes = 4096});
      std::vector<float>& all = seen[mode == Mode::Graph];
      for (int call = 0; call < 4; ++call) all.push_back(step().item<float>());
      for (const Tensor& t : {x.detach(), x.grad()}) {
        for (float v : t.to_vector<float>()) all.push_back(v);
      }
    }
    CHECK(seen[0] == seen[1]);
  }
}
