// Strips with operands in unusual layouts, written and read within the strip, or varying.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <functional>
#include <string>

#include "backends/cpu/pool.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Results = std::vector<Tensor>;

struct Outcome {
  Results all;  // Results of each call, and the state after it.
  bool in_parts = false;
};

// Five calls of a function on a state of its own, with the number of the call.
using Function = std::function<Results(const Results& state, int call)>;
Outcome play(const Function& fn, const Results& start, const StepOptions& options) {
  Outcome outcome;
  Results state;
  for (const Tensor& t : start) state.push_back(t.clone());
  int call = 0;
  auto s = step([&] { return fn(state, call); }, options);
  for (; call < 5; ++call) {
    set_rng_state({1, 0});
    for (const Tensor& t : s()) outcome.all.push_back(t);
    for (const Tensor& t : state) outcome.all.push_back(t.clone());
  }
  if (options.mode == Mode::Eager) return outcome;
  const StepStats stats = s.stats();
  CHECK_MESSAGE(stats.fallbacks == 0, stats.last_fallback);
  outcome.in_parts = s.explain().find("parts, one after the other") != std::string::npos;
  return outcome;
}

// Whether it ran in parts; checks eager's bits.
bool runs_in_parts(const Function& fn, const Results& state = {}, int64_t part_bytes = 16 << 10) {
  const Results eager = play(fn, state, {.mode = Mode::Eager}).all;
  bool in_parts = true;
  for (const int verify : {0, 1}) {
    const Outcome graph = play(
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

TEST_CASE("strips: a weight multiplied from the right is summed over its last dim") {
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

TEST_CASE("strips: external tensors are written and read in them, scalars vary") {
  test::TempCache cache;
  const Tensor x = randn({512, 16}), v = randn({16, 16});
  const Results state{randn({512, 16}), randn({16}), randn({})};
  const int threads = cpu::num_threads();
  for (const int n : {1, 3}) {
    cpu::set_num_threads(n);
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
  cpu::set_num_threads(threads);
}

TEST_CASE("strips: windows that overlap") {
  test::TempCache cache;
  const Tensor v = randn({16, 16});
  for (const int64_t by : {0, 64, 256, 511}) {
    CAPTURE(by);
    runs_in_parts(
        [&](const Results& s, int) -> Results {
          const Tensor a = s[0].slice(0, 0, 512), b = s[0].slice(0, by, by + 512);
          const Tensor h = gelu(matmul(tanh(a), v)) + b;
          b.mul_(0.5).add_(h);
          const Tensor k = softmax(matmul(h * a, v), 1);
          a.sub_(k);
          return {k * b, matmul(k.t(), a)};
        },
        {randn({1024, 16})}, 4 << 10);
  }
}

TEST_CASE("strips: batches of any size, empty ones too") {
  test::TempCache cache;
  const Tensor w = randn({16, 16}).set_requires_grad(), data = randn({600, 16});
  const auto fn = [&](const Tensor& x) -> Results {
    const Tensor h = layer_norm(gelu(linear(x, w)), {16});
    const Tensor y = softmax(linear(tanh(h) * h, w), 1);
    return {y, grad({(y * y).sum()}, {w})[0]};
  };
  auto s = step(fn, {.build_at_first_call = true, .part_bytes = 1 << 10});
  for (const int64_t rows : {512, 0, 1, 7, 64, 509, 512, 0}) {
    CAPTURE(rows);
    const Tensor x = data.narrow(0, 3, rows);
    const Results got = s(x), wanted = fn(x);
    for (size_t k = 0; k < wanted.size(); ++k) CHECK(same_bits(got[k], wanted[k]));
  }
  CHECK_MESSAGE(s.stats().fallbacks == 0, s.stats().last_fallback);
}

TEST_CASE("strips: a check of what they computed fails when all parts have run") {
  test::TempCache cache;
  const Tensor held = randn({512, 16}), v = randn({16, 16}), table = randn({4, 16});
  const Tensor w = randn({16}).set_requires_grad(), far = zeros({});
  auto s = step(
      [&](const Tensor& x) -> Results {
        const Tensor h = gelu(matmul(tanh(x * 2.0), v));
        Tensor before;
        {
          NoGradGuard guard;
          held.mul_(0.5).add_(h);
          before = softmax(matmul(held, v), 1);
        }
        (before * w).sum().backward();
        const Tensor ids = (before.select(1, 0) * 0.0 + far).to(kInt64);
        return {embedding(table, ids) + before};
      },
      {.build_at_first_call = true, .part_bytes = 4 << 10});
  const Tensor x = randn({512, 16});
  s(x);
  s(x);
  CHECK(s.explain().find("parts, one after the other") != std::string::npos);
  const Tensor then = held.clone(), gradient = w.grad().clone();
  far.fill_(9.0);
  CHECK_THROWS_AS(s(x), Error);
  CHECK(same_bits(held, then));
  CHECK(same_bits(w.grad(), gradient));
  far.fill_(3.0);
  CHECK_NOTHROW(s(x));
  CHECK_FALSE(same_bits(held, then));
}
