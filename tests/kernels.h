#pragma once
// The number of kernels of a step, with its results checked against eager mode.

#include <doctest/doctest.h>

#include "brrr.h"
#include "tests/fuzz_steps.h"

namespace brrr::test {

/// The number of kernels of a replay, after two calls whose results must be eager's bits.
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
