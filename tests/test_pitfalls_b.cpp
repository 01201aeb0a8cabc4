// Errors and crashes: a failure leaves all state unchanged.
#include <sstream>

#include "backends/cpu/allocator.h"
#include "pitfalls.h"
#include "temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// Gives both the same weights with the same version.
void twins(Everything& a, Everything& b) {
  const StateDict dict = Everything().model.state_dict();
  a.model.load_state_dict(dict);
  b.model.load_state_dict(dict);
}

/// Makes `before` calls, then one that `sabotage` makes fail, then compares with an eager twin.
template <class F, class G>
void survives(int before, const StepOptions& options, const F& sabotage, const G& mend) {
  Everything graph, eager;
  twins(graph, eager);
  const Tensor data = randn({8, 4, 6});
  auto step =
      brrr::step([&](const Tensor& x, const Tensor& y) { return graph.run(x, y); }, options);
  const RngState rng = rng_state();
  std::vector<Tensor> losses;
  auto batch = [&](int i) { return data.select(0, i).clone(); };
  for (int i = 0; i < before; ++i) losses.push_back(step(batch(i), labels()));
  {
    const Tensor x = batch(before);
    const Trace old = graph.state(x);
    sabotage(graph, [&] { step(x, labels()); });
    mend(graph);
    CHECK(first_difference(old, graph.state(x)) == -1);
  }
  for (int i = before; i < before + 3; ++i) losses.push_back(step(batch(i), labels()));
  const Trace after = graph.state(data);
  set_rng_state(rng);
  for (int i = 0; i < before + 3; ++i) {
    CHECK(same_bits(losses[static_cast<size_t>(i)], eager.run(batch(i), labels())));
  }
  CHECK(first_difference(after, eager.state(data)) == -1);
  CHECK(same_bits(graph.kept, eager.kept));
}

}  // namespace

TEST_CASE("pitfall B1: a host read inside the step throws at the user's line") {
  models::Linear layer(3, 3);
  Tensor before = ones({2, 4});
  int what = 0;
  bool went_on = false;
  float raw[3] = {};
  // Each names the call and, if there is one, the tensor.
  const std::string says[] = {"item: float32[] ",
                              "to_vector: float32[2, 3] ",
                              "to_string: float32[2, 3] ",
                              "data_ptr: float32[2, 3] ",
                              "data: float32[2, 4] ",
                              "to_vector: float32[2, 4] ",
                              "manual_seed: ",
                              "from_blob: ",
                              "item: float32[5, 3] ",
                              "to_string: float32[2, 3] "};
  auto step = brrr::step(
      [&](const Tensor& x) {
        Tensor h = layer(x).slice(0, 0, 2) * 2.0;
        const Tensor loss = h.sum();
        before.add_(1.0);
        went_on = false;
        switch (what) {
          case 1:
            loss.item<float>();
            break;
          case 2:
            h.to_vector<float>();
            break;
          case 3:
            h.to_string();
            break;
          case 4:
            h.data_ptr();
            break;
          case 5:
            before.data<float>();
            break;
          case 6:
            before.to_vector<double>();
            break;
          case 7:
            manual_seed(1);
            break;
          case 8:
            from_blob(raw, {3}, kFloat32, false);
            break;
          case 9:
            x.item<float>();
            break;
          case 10:
            std::ostringstream() << h;
            break;
          default:
            break;
        }
        went_on = true;
        return loss.detach();
      },
      kEarly);
  const Tensor x = ones({5, 3});
  for (int round = 0; round < 2; ++round) {
    for (int w = 1; w <= 10; ++w) {
      what = w;
      const Tensor old = before.clone();
      const uint32_t version = before.version();
      const std::string text = error_of([&] { step(x); });
      CAPTURE(w);
      CHECK_MESSAGE(text.starts_with(says[w - 1]), text);
      CHECK_MESSAGE(contains(text, "a graph-mode step"), text);
      CHECK_FALSE(went_on);
      CHECK(same_bits(before, old));
      CHECK(before.version() == version);
    }
    what = 0;
    for (int i = 0; i < 2; ++i) CHECK(step(x).defined());
  }
  // The user may catch it and continue: the step then takes effect.
  auto forgiving = brrr::step(
      [&](const Tensor& t) {
        const Tensor y = t + 1.0;
        CHECK_THROWS_AS(y.item<float>(), Error);
        CHECK_THROWS_AS(y.matmul(ones({7, 7})), Error);
        return y * 2.0;
      },
      kEarly);
  for (int i = 0; i < 3; ++i) CHECK(same_bits(forgiving(x), (x + 1.0) * 2.0));
  CHECK(forgiving.stats().recordings == 1);
}

TEST_CASE("pitfall B5: the function throws at any point, on any call") {
  for (int before : {0, 1, 3}) {
    for (int at = 0; at < 13; ++at) {
      CAPTURE(at);
      survives(
          before, before == 1 ? kEarly : StepOptions{},
          [&](Everything& e, auto&& call) {
            e.throw_at = at;
            CHECK_THROWS_AS(call(), std::runtime_error);
            if (at > 5) {
              CHECK(contains(error_of([&] { e.kept.item<float>(); }), "temporary"));
            }
          },
          [](Everything& e) { e.throw_at = -1; });
    }
  }
}

TEST_CASE("pitfall B5: every allocation of a step fails once" * doctest::test_suite("host")) {
  // A first call on the walker, one that builds, and a replay, each with allocation k failing.
  struct Case {
    int before;
    bool early;
  };
  for (const Case c : {Case{0, false}, Case{0, true}, Case{1, false}, Case{3, false}}) {
    int failures = 0;
    for (int k = 0;; ++k) {
      Everything e;
      const Tensor data = randn({4, 6});
      auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return e.run(x, y); },
                             StepOptions{.build_at_first_call = c.early});
      for (int i = 0; i < c.before; ++i) step(data.clone(), labels());
      const Tensor x = data.clone();
      e.kept = Tensor();
      const Trace old = e.state(x);
      const size_t live = live_bytes();
      cpu::fail_after(k);
      const std::string text = error_of([&] { step(x, labels()); });
      cpu::fail_after(-1);
      if (text.empty()) break;
      ++failures;
      CHECK(contains(text, "out of memory"));
      e.kept = Tensor();
      CHECK(live_bytes() <= live);
      CHECK(first_difference(old, e.state(x)) == -1);
      const RngState rng = rng_state();
      const Tensor loss = step(x, labels());
      CHECK(loss.defined());
      CHECK(rng_state().draw > rng.draw);
      if (k > 400) FAIL("no end of allocations");
    }
    CHECK(failures >= 3);  // Results and the arena.
  }
}

TEST_CASE("pitfall B5: an in-place op on overlapping memory fails after other writes" *
          doctest::test_suite("host")) {
  for (const bool fuse : {true, false}) {
    Tensor a = ones({8}), m = randn({6, 6});
    auto step = brrr::step(
        [&] {
          a.add_(1.0);
          m.sub_(m.t() * 0.5);
          m.add_(m.t());
        },
        StepOptions{.build_at_first_call = true, .fuse = fuse});
    step();
    int failures = 0;
    for (int k = 0; k < 20; ++k) {
      const Tensor old_a = a.clone(), old_m = m.clone();
      cpu::fail_after(k);
      const bool failed = !error_of([&] { step(); }).empty();
      cpu::fail_after(-1);
      failures += failed;
      if (!failed) continue;
      CHECK(same_bits(a, old_a));
      CHECK(same_bits(m, old_m));
    }
    CHECK(failures > 0);
  }
}

TEST_CASE("pitfall B5: an index out of range, whichever it is" * doctest::test_suite("host")) {
  const Tensor x = randn({5, 3});
  for (const int64_t n : {1, 15, 16, 37}) {
    for (int64_t at = 0; at < n; ++at) {
      for (const int64_t bad : {int64_t{-1}, int64_t{5}, INT64_MAX, INT64_MIN, int64_t{4}}) {
        std::vector<int64_t> ids(static_cast<size_t>(n), 2);
        ids[static_cast<size_t>(at)] = bad;
        const std::string said = error_of([&] { embedding(x, tensor(ids)); });
        CHECK(contains(said, fmt::format("index {} is out of range", bad)) == (bad != 4));
      }
    }
  }
}

TEST_CASE("pitfall B5: an index out of range, on any call" * doctest::test_suite("host")) {
  const Tensor good = tensor(std::vector<int64_t>{0, 1, 2});
  const Tensor bad = tensor(std::vector<int64_t>{0, 1, 7});
  for (int before : {0, 1, 3}) {
    models::Embedding table(5, 4);
    optim::SGD opt(table.parameters(), {.lr = 0.1});
    Tensor count = zeros({});
    auto step = brrr::step(
        [&](const Tensor& ids) {
          count.add_(1.0);
          Tensor loss = cross_entropy(table(ids), ids);
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        before == 1 ? kEarly : StepOptions{});
    for (int i = 0; i < before; ++i) step(good);
    auto state = [&] {
      Trace t;
      t.add_leaves({table.weight, count});
      return t;
    };
    const Trace old = state();
    CHECK(contains(error_of([&] { step(bad); }), "index 7 is out of range"));
    CHECK(first_difference(old, state()) == -1);
    step(good);
    CHECK(count.item<int>() == before + 1);
  }
}

TEST_CASE("pitfall B5: a tape from before the step is released only if the step runs") {
  Tensor w = ones({3});
  w.set_requires_grad(true);
  Tensor h;
  bool fail = true;
  auto step = brrr::step(
      [&] {
        w.set_grad({});
        h.sum().backward();
        if (fail) throw std::runtime_error("user");
      },
      kEarly);
  for (int i = 0; i < 3; ++i) {
    h = (w * 2.0).exp();
    fail = true;
    CHECK_THROWS_AS(step(), std::runtime_error);
    CHECK_THROWS_AS(step(), std::runtime_error);
    fail = false;
    step();
    const Tensor g = w.grad();
    CHECK(contains(error_of([&] { step(); }), "or detach() tensors of an earlier step"));
    CHECK(contains(error_of([&] { h.sum().backward(); }), "has been used and released"));
    CHECK(same_bits(g, w.grad()));
    CHECK(same_bits(g, (w.detach() * 2.0).exp() * 2.0));
  }
}

TEST_CASE("pitfall B5: a failed build trains on, says why, and leaks nothing" *
          doctest::test_suite("host")) {
  TempCache cache;
  const auto none = [](Everything&) {};
  SUBCASE("one build fails") {
    Everything graph, eager;
    twins(graph, eager);
    auto step =
        brrr::step([&](const Tensor& x, const Tensor& y) { return graph.run(x, y); }, kEarly);
    const RngState rng = rng_state();
    const Tensor x = ones({4, 6});
    std::vector<Tensor> losses;
    for (int i = 0; i < 3; ++i) {
      const Env fails("BRRR_JIT_FAIL", i < 2 ? "1" : nullptr);
      losses.push_back(step(x.clone(), labels()));
    }
    set_rng_state(rng);
    for (const Tensor& l : losses) CHECK(same_bits(l, eager.run(x.clone(), labels())));
    CHECK(step.stats().fallbacks >= 1);
    CHECK(!step.stats().last_fallback.empty());
    CHECK(contains(step.explain(), "fallback"));
  }
  SUBCASE("no compiler at all") {
    Env off("BRRR_JIT", "off");
    const size_t live = live_bytes();
    survives(
        2, kEarly, [](Everything&, auto&&) {}, none);
    CHECK(live_bytes() <= live);
  }
  SUBCASE("a compiler that fails") {
    Env bad("BRRR_CXX", "/bin/false");
    survives(
        2, kEarly, [](Everything&, auto&&) {}, none);
  }
}
