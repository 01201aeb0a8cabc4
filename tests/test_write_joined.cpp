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
