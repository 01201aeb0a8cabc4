// Errors and crashes, continued: teardown, full caches, nesting, threads.
#include <atomic>
#include <climits>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("pitfall B6: a thousand steps made and dropped, in any order") {
  const Tensor x = ones({4, 6});
  const auto cycle = [&](const StepOptions& options, int i) {
    auto e = std::make_unique<Everything>();
    auto run = [&e](const Tensor& a, const Tensor& b) { return e->run(a, b); };
    auto step = std::make_unique<Step<decltype(run)>>(run, options);
    Tensor loss = (*step)(x.clone(), labels());
    if (i % 3 == 0) (*step)(x.clone(), labels());
    if (i % 5 == 0) {
      e->throw_at = i % 13;
      CHECK_THROWS_AS((*step)(x.clone(), labels()), std::runtime_error);
    }
    if (i % 2) step.reset();
    e.reset();
    step.reset();
    CHECK(loss.numel() == 1);
  };
  cycle(kEarly, 0);
  cycle({}, 0);
  const size_t live = live_bytes();
  for (int i = 0; i < 1000; ++i) cycle({}, i % 3 ? i : i + 1);
  for (int i = 0; i < 10; ++i) cycle(kEarly, i);
  CHECK(live_bytes() <= live);
  // A step that outlives its model, and one that is moved.
  auto first = brrr::step([](const Tensor& t) { return t * 2.0; }, kEarly);
  const Tensor y = first(x);
  auto second = std::move(first);
  CHECK(same_bits(second(x), y));
}

// Constructed before, and so destroyed after, the library's thread-local state.
struct Latecomer {
  Tensor w = randn({4}).set_requires_grad();
  Step<std::function<Tensor(const Tensor&)>> step =
      brrr::step(std::function([](const Tensor& x) { return (x * 2.0).exp(); }), kEarly);
  std::atomic<int>* good;
  explicit Latecomer(std::atomic<int>* count) : good(count) {
    use();
    step(w.detach());
    step.freeze();
  }
  ~Latecomer() {
    use();
    use();
  }
  void use() {
    w.set_grad({});
    (w * w).sum().backward();
    const Tensor x = w.detach(), y = step(x);
    auto other = brrr::step([](const Tensor& t) { return tanh(t) + 1.0; }, kEarly);
    const Tensor z = other(x);
    *good += same_bits(w.grad(), x * 2.0) && same_bits(y, (x * 2.0).exp()) &&
             same_bits(z, tanh(x) + 1.0);
  }
};

TEST_CASE("pitfall B6: destructors of thread-local objects compute, in any order of destruction") {
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    std::thread([&] { static thread_local const Latecomer late(&good); }).join();
  }
  CHECK(good == 24);
}

TEST_CASE("pitfall B7: a full cache drops the least recently used entry") {
  auto step = brrr::step([](const Tensor& x) { return (x * 2.0).exp(); },
                         StepOptions{.max_entries = 3, .build_at_first_call = true});
  for (int round = 0; round < 2; ++round) {
    for (int64_t n = 1; n <= 6; ++n) {
      const Tensor x = randn({n});
      CHECK(same_bits(step(x), (x * 2.0).exp()));
    }
  }
  CHECK(step.stats().entries == 3);
  CHECK(step.stats().evictions == 9);
  step(ones({4}));
  step(ones({7}));  // Drops 5, not 4.
  const uint64_t before = step.stats().recordings;
  step(ones({4}));
  step(ones({6}));
  CHECK(step.stats().recordings == before);
  CHECK(
      contains(error_of([] { brrr::step([] {}, StepOptions{.max_entries = 0}); }), "max_entries"));
}

// (Detected under a sanitizer only; otherwise the overflow was harmless.)
TEST_CASE("pitfall B11: options as large as their types") {
  auto step = brrr::step([](const Tensor& x) { return (x * 2.0).exp(); },
                         StepOptions{.max_entries = INT_MAX,
                                     .build_at_first_call = true,
                                     .memory_budget = 1e300,
                                     .part_bytes = INT64_MAX});
  const Tensor x = randn({64, 64});
  CHECK(same_bits(step(x), (x * 2.0).exp()));
}

TEST_CASE("pitfall B11: steps inside steps, recursion and repeated arguments") {
  Tensor w = ones({4});
  w.set_requires_grad(true);
  optim::SGD opt({w}, {.lr = 0.1});
  auto inner = brrr::step(
      [&](const Tensor& x) {
        opt.zero_grad();
        (w * w * x).sum().backward();
        opt.step();
        return w.sum().detach();
      },
      kEarly);
  auto outer = brrr::step([&](const Tensor& x) { return inner(x) + inner(x * 2.0); }, kEarly);
  std::function<Tensor(const Tensor&, int)> deep;
  auto again = brrr::step([&](const Tensor& x) { return deep(x, 3); }, kEarly);
  deep = [&](const Tensor& x, int n) { return n == 0 ? x : again(x * 1.5) + 1.0; };
  const Tensor x = randn({4});
  Tensor v = ones({4});
  auto eager = [&](const Tensor& in) {
    NoGradGuard guard;
    v.sub_((v * in + v * in) * 0.1);
    return v.sum();
  };
  for (int i = 0; i < 3; ++i) {
    const Tensor a = outer(x);
    const Tensor b = eager(x) + eager(x * 2.0);
    CHECK(std::abs(a.item<float>() - b.item<float>()) < 1e-3f);
    const Tensor c = inner(x);
    CHECK(same_bits(c, w.sum().detach()));
    eager(x);
  }
  CHECK(inner.stats().calls == 3);
  // The step calls itself recursively, to a limited depth.
  int depth = 0;
  std::function<Tensor(const Tensor&)> recurse;
  auto self = brrr::step([&](const Tensor& t) { return recurse(t); }, kEarly);
  recurse = [&](const Tensor& t) { return depth++ % 4 == 3 ? t * 2.0 : self(t + 1.0); };
  for (int i = 0; i < 3; ++i) CHECK(same_bits(self(x), (x + 1.0 + 1.0 + 1.0) * 2.0));
  auto twice = brrr::step(
      [](const Tensor& a, const Tensor& b) {
        a.add_(b);
        return a * b;
      },
      kEarly);
  for (int i = 0; i < 3; ++i) {
    const Tensor t = x.clone();
    CHECK(same_bits(twice(t, t), (x + x) * (x + x)));
    CHECK(same_bits(t, x + x));
  }
}

TEST_CASE("pitfall B11: threads that evict each other's entries") {
  for (const Policy policy : {Policy::Recompile, Policy::Eager}) {
    auto step = brrr::step(
        [](const Tensor& x) { return x * 2.0; },
        {.on_new_entry = policy, .max_entries = 1, .build_at_first_call = true, .fuse = false});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 300; ++i) {
          const int64_t n = 1 + (i + t) % 7;
          wrong += step(ones({n})).sum().item<double>() != 2.0 * static_cast<double>(n);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("pitfall B11: two threads, one step or shared parameters") {
  models::MLP model(small_mlp());
  const Tensor data = randn({64, 4, 6});
  std::vector<std::vector<char>> expected;
  for (int i = 0; i < 64; ++i) {
    NoGradGuard guard;
    expected.push_back(comparable_bytes(model(data.select(0, i))));
  }
  auto shared = brrr::step([&](const Tensor& x) { return model(x).detach(); });
  std::atomic<int> wrong{0};
  auto work = [&](auto& step, int begin) {
    NoGradGuard guard;
    for (int round = 0; round < 20; ++round) {
      for (int i = begin; i < begin + 32; ++i) {
        const Tensor y = step(data.select(0, i));
        wrong += comparable_bytes(y) != expected[static_cast<size_t>(i)];
      }
    }
  };
  {
    std::thread a([&] { work(shared, 0); }), b([&] { work(shared, 32); });
    a.join();
    b.join();
  }
  CHECK(wrong == 0);
  CHECK(shared.stats().recordings <= 2);
  {
    auto one = brrr::step([&](const Tensor& x) { return model(x).detach(); }, kEarly);
    auto two = brrr::step([&](const Tensor& x) { return (model(x) * 1.0).detach(); }, kEarly);
    std::thread a([&] { work(one, 0); }), b([&] { work(two, 32); });
    a.join();
    b.join();
  }
  CHECK(wrong == 0);
  {
    NoGradGuard guard;
    shared(data.select(0, 0));
    shared.freeze();
    std::thread a([&] { work(shared, 0); }), b([&] { work(shared, 32); });
    a.join();
    b.join();
  }
  CHECK(wrong == 0);
}
