// Attention and rotary embedding: the kernels against the decomposition, gradients, masks.

#include <doctest/doctest.h>

#include "ops/factory_ops.h"
#include "ops/nn_ops.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("attention: gradients") {
  manual_seed(1);
  auto normal = [](const IntList& sizes) { return randn(sizes).to(kFloat64); };
  const auto r = gradcheck(
      [](const Tensors& in) {
        return scaled_dot_product_attention(in[0], in[1], in[2], {.causal = true});
      },
      {normal({2, 5, 3}), normal({2, 7, 3}), normal({2, 7, 4})},
      {.tolerance = 2e-6, .second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
  const auto s = gradcheck(
      [](const Tensors& in) { return rotary_embedding(in[0], arange(5)); },
      {normal({2, 5, 6})}, {.tolerance = 2e-6, .second_order = true});
  CHECK_MESSAGE(s.ok, s.report);
}
