#pragma once
// How many kernels a step became, checked against eager mode.

#include <doctest/doctest.h>

#include "brrr.h"
#include "tests/fuzz_steps.h"

namespace brrr::test {

/// The kernels of a replay, whose results are eager's bits in two calls.
template <class F> uint64_t kernels(const F& fn) {
  const std::vector<Tensor> eager = fn();
  auto step = brrr::step(fn, {.require_graph = true, .build_at_first_call = true});
  for (int call = 0; call < 2; ++call) {
    const std::vector<Tensor> graph = step();
    REQUIRE(eager.size() == graph.size());
    for (size_t k = 0; k < eager.size(); ++k) {
      CAPTURE(k);
      CHECK(same_bits(eager[k], graph[k]));
    }
  }
  CHECK(step.stats().fallbacks == 0);
  return step.stats().kernels_per_replay;
}

}  // namespace brrr::test
