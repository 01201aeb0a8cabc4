// Strips where operands lie in unusual ways, are written and read in them, or vary.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <functional>
#include <string>

#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Results = std::vector<Tensor>;

struct Played {
  Results all;  // Of each call, and what the state is then.
  bool in_parts = false;
};

// Five calls of a function over a state of its own, with their number.
using Function = std::function<Results(const Results& state, int call)>;
Played play(const Function& fn, const Results& start, const StepOptions& options) {
  Played played;
  Results state;
  for (const Tensor& t : start) state.push_back(t.clone());
  int call = 0;
  auto s = step([&] { return fn(state, call); }, options);
  for (; call < 5; ++call) {
    set_rng_state({1, 0});
    for (const Tensor& t : s()) played.all.push_back(t);
    for (const Tensor& t : state) played.all.push_back(t.clone());
  }
  if (options.mode == Mode::Eager) return played;
  const StepStats stats = s.stats();
  CHECK_MESSAGE(stats.fallbacks == 0, stats.last_fallback);
  played.in_parts = s.explain().find("parts, one after the other") != std::string::npos;
  return played;
}

// Whether it ran in parts, to eager's bits.
bool runs_in_parts(const Function& fn, const Results& state = {}, int64_t part_bytes = 16 << 10) {
  const Results eager = play(fn, state, {.mode = Mode::Eager}).all;
  bool in_parts = true;
  for (const int verify : {0, 1}) {
    const Played graph = play(
        fn, state, {.verify_every = verify, .build_at_first_call = true, .part_bytes = part_bytes});
    for (size_t k = 0; k < eager.size(); ++k) {
      CAPTURE(k);
      CHECK(same_bits(graph.all[k], eager[k]));
    }
    in_parts &= graph.in_parts;
  }
  return in_parts;
}

}  // namespace

TEST_CASE("strips: the terms of a weight that is multiplied from the right lie in its last dim") {
  test::TempCache cache;
  const Tensor x = randn({1024, 16}), w = randn({64, 1024}), v = randn({16, 16});
  CHECK(runs_in_parts([&](const Results&, int) -> Results {
    return {linear(relu(matmul(tanh(x * 2.0), v)).t(), w)};
  }));
}

TEST_CASE("strips: the row of one id has no rows to be cut into") {
  test::TempCache cache;
  const Tensor table = randn({}).expand({5, 256}), id = tensor({3}).select(0, 0);
  const Tensor a = randn({256, 1}), b = randn({256, 1});
  const auto fn = [&](const Results&, int) -> Results {
    const Tensor both = cat({a, b}, 1);
    return {gelu(embedding(table, id) + both.select(1, 0)) + both.select(1, 1)};
  };
  runs_in_parts(fn, {}, 64);
}

TEST_CASE("strips: what comes from outside is written and read in them, numbers vary") {
  test::TempCache cache;
  const Tensor x = randn({512, 16}), v = randn({16, 16});
  const Results state{randn({512, 16}), randn({16}), randn({})};
  CHECK(runs_in_parts(
      [&](const Results& s, int call) -> Results {
        const Tensor &held = s[0], &scale = s[1], &one = s[2];
        const Tensor h = tanh(matmul(x, v) + held);
        held.mul_(0.5 + 0.125 * call).add_(h);
        const Tensor m = gelu(matmul(held, v)) * one + 0.25 * call;
        const Tensor z = softmax(dropout(m, 0.25, true), 1) * scale;
        held.sub_(z);
        scale.sub_(sum(z, {0}) * 0.01);
        one.add_(0.25);
        return {matmul(z.t(), m), z.slice(1, 0, 8) * 2.0};
      },
      state));
}
