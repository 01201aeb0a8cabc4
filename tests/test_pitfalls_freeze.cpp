// Frozen steps: values that change between steps keep changing; unsafe steps are rejected.
#include <functional>
#include <set>
#include <stdexcept>
#include <thread>

#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// Trains, frozen or not, with everything that changes between steps.
void frozen_scenario(bool freeze, Trace& t) {
  manual_seed(11);
  Trainer<optim::Adam, optim::AdamOptions> w({.lr = 1e-2}, 0.4);
  optim::WarmupCosineLR schedule(w.opt, 5, 30);
  int runs = 0;
  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& y) {
        ++runs;
        return w.train(x, y, 0.5).detach();
      },
      freeze ? Mode::Graph : Mode::Eager);
  std::vector<Tensor> held;
  for (int i = 0; i < 24; ++i) {
    if (freeze && i == 4) step.freeze();
    if (i == 12) w.model.eval();
    if (i == 15) w.model.train();
    const int64_t n = i == 18 || i == 19 ? 3 : 4;
    held.push_back(step(randn({n, 6}), randint(0, 3, {n})));
    held.push_back(w.model.parameters()[1].grad());
    w.log(t, held[held.size() - 2]);
    t.add_rng();
    schedule.step();
  }
  t.add(held);
  if (freeze) CHECK(runs < 16);
}

}  // namespace

TEST_CASE("pitfall A25: frozen, Adam, gradients, schedules, masks and shapes keep changing") {
  Trace eager, frozen;
  frozen_scenario(false, eager);
  frozen_scenario(true, frozen);
  CHECK(first_difference(eager, frozen) == -1);
}

TEST_CASE("pitfall A25: a step that would be wrong when frozen refuses to freeze") {
  const Tensor x = randn({4});
  auto refusal = [&](auto&& fn) {
    auto step = brrr::step(fn, kEarly);
    step(x);
    step(x);
    return error_of([&] { step.freeze(); });
  };
  Tensor w = randn({4}), kept, other = randn({4});
  w.set_requires_grad(true);
  auto backward = [&](const Tensor& in) { (w * in).sum().backward(); };
  auto idle = brrr::step([](const Tensor& in) { return in + 1.0; });
  CHECK(contains(error_of([&] { idle.freeze(); }), "at least once"));
  auto eager = brrr::step([](const Tensor& in) { return in + 1.0; }, Mode::Eager);
  eager.freeze();  // The modes' programs differ in one flag only.
  CHECK(eager(ones({3})).sum().item<float>() == 6);
  CHECK(contains(eager.explain(), "1 calls, eager"));
  std::function<void()> freeze = [] {};
  auto inside = brrr::step([&](const Tensor& x) {
    freeze();
    return x * 2.0;
  });
  inside(ones({3}));
  freeze = [&] { inside.freeze(); };
  CHECK(contains(error_of([&] { inside(ones({3})); }), "between two calls"));
  CHECK(refusal([](const Tensor& in) { return in + 1.0; }) == "");
  CHECK(contains(refusal([&](const Tensor& in) { kept = in + 1.0; }), "captured handle"));
  CHECK(contains(refusal([&](const Tensor& in) {
                   return in + tensor({1.0, 2.0, 3.0, 4.0});
                 }),
                 "host memory, or moves one to a device (host_data() -> "));
  CHECK(contains(refusal([&](const Tensor& in) { return in.slice(0, 0, 2); }), "not made"));
  CHECK(contains(refusal([&](const Tensor& in) { return in * w; }), "history"));
  CHECK(contains(refusal([&](const Tensor&) { w.set_grad(other); }), "outside"));
  w.set_grad({});
  // Accumulation onto an existing gradient: zero_grad outside would not be noticed.
  CHECK(contains(refusal(backward), "gradient"));
  w.set_grad({});
  optim::SGD opt({w}, {.lr = 0.1});
  CHECK(contains(refusal([&](const Tensor& in) {
                   opt.zero_grad();
                   backward(in);
                   opt.set_lr(opt.lr() * 0.5);
                   opt.step();
                 }),
                 "learning rate"));
  CHECK(contains(refusal([&](const Tensor&) {
                   NoGradGuard guard;
                   w.sub_(w.grad() * 0.1);
                 }),
                 "gradient"));
}

TEST_CASE("pitfall A25: a gradient that the function only tests for may vanish and reappear") {
  const Tensor w = ones({2}).set_requires_grad();
  const auto body = [&](const Tensor& x) { return x * (w.grad().defined() ? 2.0 : 3.0); };
  for (const bool there : {true, false}) {
    auto step = brrr::step(body, kEarly);
    for (int call = 0; call < 8; ++call) {
      w.set_grad(there == (call < 5) ? ones({2}) : Tensor());
      const Tensor x = randn({2}), given = w.grad();
      CHECK(same_bits(step(x), body(x)));
      CHECK(w.grad().is_same(given));
      if (call == 2) step.freeze();
    }
  }
}

TEST_CASE("pitfall A25: a later call of a frozen step that cannot freeze runs the function") {
  Tensor kept;
  int runs = 0;
  auto body = [&](const Tensor& x) {
    ++runs;
    if (x.numel() == 3) kept = x * 5.0;
    if (x.numel() == 2) return x + tensor({1.0 * runs, 2.0});
    return x * 2.0;
  };
  auto step = brrr::step(body, kEarly);
  step(ones({4}));
  step.freeze();
  for (int i = 0; i < 3; ++i) step(ones({4}));
  CHECK(runs == 2);  // The first tensor could have been a captured one.
  for (int i = 0; i < 3; ++i) {
    const Tensor x = randn({3});
    CHECK(same_bits(step(x), x * 2.0));
    CHECK(same_bits(kept, x * 5.0));
    const Tensor y = step(zeros({2}));
    CHECK(y.to_vector<double>()[0] == runs);
  }
  CHECK(runs == 8);
}

TEST_CASE("pitfall A25: an optimiser created again keeps its own learning rate when frozen") {
  Tensor w[2];
  for (int frozen = 0; frozen < 2; ++frozen) {
    Tensor p = ones({3});
    p.set_requires_grad(true);
    auto opt = std::make_unique<optim::SGD>(std::vector<Tensor>{p}, optim::SGDOptions{.lr = 0.1});
    auto step = brrr::step(
        [&](const Tensor& x) {
          opt->zero_grad();
          (p * p * x).sum().backward();
          opt->step();
        },
        frozen ? Mode::Graph : Mode::Eager);
    const Tensor x = ones({3});
    for (int i = 0; i < 3; ++i) step(x);
    opt = std::make_unique<optim::SGD>(std::vector<Tensor>{p}, optim::SGDOptions{.lr = 0.01});
    for (int i = 0; i < 3; ++i) step(x);
    if (frozen) step.freeze();
    for (int i = 0; i < 3; ++i) {
      opt->set_lr(0.02 * (i + 1));
      step(x);
    }
    w[frozen] = p;
  }
  CHECK(same_bits(w[0], w[1]));
}

TEST_CASE("pitfall A25: two recordings that begin alike each use the call's own scalars") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    Tensor p = zeros({2});
    p.set_requires_grad(true);
    optim::SGD slow({p}, {.lr = 1.0}), fast({p}, {.lr = 100.0});
    bool is_fast = false, ends_so = false;
    auto step = brrr::step(
        [&](const Tensor& x) {
          p.set_grad({});
          (p * x).sum().backward();
          (is_fast ? fast : slow).step();
          return ends_so ? x * 2.0 : x + 1.0;
        },
        mode);
    const auto moved = [&](bool fast_one, bool end) {
      is_fast = fast_one;
      ends_so = end;
      const float before = p.to_vector<float>()[0];
      step(ones({2}));
      return before - p.to_vector<float>()[0];
    };
    CHECK(moved(false, false) == 1);
    CHECK(moved(true, true) == 100);
    CHECK(moved(false, false) == 1);
    CHECK(moved(false, true) ==
          1);  // Begins as one recording does, with its rate, ends as the other.
    if (mode == Mode::Graph) step.freeze();
    CHECK(moved(false, true) == 1);
    slow.set_lr(2.0);
    CHECK(moved(false, true) == 2);
  }
}

TEST_CASE("pitfall A25: a step that restores requires_grad at its end may be frozen") {
  const Tensor p = ones({3});
  p.set_requires_grad();
  auto step = brrr::step([&](const Tensor& x) {
    p.set_requires_grad(false);
    const Tensor y = p * x;
    p.set_requires_grad(true);
    return y;
  });
  for (int call = 0; call < 3; ++call) step(randn({3}));
  step.freeze();
  CHECK(step(full({3}, 2.0)).to_vector<float>() == std::vector<float>(3, 2.f));
}

TEST_CASE("pitfall A25: a result that is a view is one when frozen, too") {
  const Tensor w = full({6}, 2.0);
  w.set_requires_grad();
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    auto step = brrr::step(
        [](const Tensor& x) {
          const Tensor y = x * 2.0;
          return std::pair(y, y.view({2, 3}));
        },
        mode);
    for (int call = 0; call < 3; ++call) step(randn({6}));
    if (mode == Mode::Graph) step.freeze();
    for (int call = 0; call < 2; ++call) {
      Tensor y, v;
      std::tie(y, v) = step(ones({6}));
      CHECK(contains(error_of([&] { y.mul_(w); }), "view"));
      CHECK(contains(error_of([&] { v.mul_(w.view({2, 3})); }), "view"));
      v = Tensor();
      CHECK(y.mul_(w).to_vector<float>() == std::vector<float>(6, 4.f));
    }
  }
}

TEST_CASE("pitfall A25: a step that sets the random stream or requires_grad refuses to freeze") {
  const auto refused = [](const std::function<Tensor(const Tensor&)>& fn, const char* why) {
    auto step = brrr::step(fn);
    for (int call = 0; call < 3; ++call) {
      step(zeros({4}));
      rand({3});
    }
    const std::string said = error_of([&] { step.freeze(); });
    INFO(said);
    CHECK(said.find(why) != std::string::npos);
  };
  refused(
      [](const Tensor& x) {
        set_rng_state({7, 100});
        return x + rand({4});
      },
      "random stream");
  refused(
      [](const Tensor& x) {
        x.set_requires_grad(true);
        return x.detach() + 1.0;
      },
      "requires grad");
}

// Without an eager twin beside it, whose mode switches would unfreeze the step.
TEST_CASE("pitfall A25: a step that leaves a module in another mode refuses to freeze") {
  models::Dropout drop(0.5);
  models::MLP other({.sizes = {4, 4}, .dropout = 0.5});
  const auto refusal = [&](auto&& change) {
    auto step = brrr::step([&](const Tensor& x) { return change(x); }, kEarly);
    for (int i = 0; i < 2; ++i) step(ones({4}));
    return error_of([&] { step.freeze(); });
  };
  CHECK(contains(refusal([&](const Tensor& x) {
                   drop.train(!drop.is_training());
                   return drop(x);
                 }),
                 "another mode (train, eval)"));
  drop.train();
  CHECK(refusal([&](const Tensor& x) {
          drop.eval();
          const Tensor y = drop(x);
          drop.train();
          return y + drop(x);
        }).empty());
  CHECK(contains(refusal([&](const Tensor& x) {
                   drop.train(!drop.is_training());
                   other.train(!drop.is_training());
                   return drop(x);
                 }),
                 "another mode (train, eval)"));
  CHECK(refusal([](const Tensor& x) {  // The step has not seen its mode before.
          models::Dropout own(0.5);
          own.eval();
          return own(x) * 2.0;
        })
            .empty());
}

TEST_CASE("pitfall A25: no draw occurs in two threads, in frozen steps or ones that throw") {
  for (const int way : {0, 1, 2}) {
    CAPTURE(way);
    constexpr int calls = 3000;
    std::vector<float> drawn[2];
    const auto draw = [&](std::vector<float>& all) {
      bool throws = false;
      auto step = brrr::step([&](const Tensor& x) {
        const Tensor y = x + rand({4});
        if (throws) throw std::runtime_error("thrown out");
        return y;
      });
      const Tensor x = zeros({4});
      for (int call = 0; call < calls; ++call) {
        throws = way == 2 && call % 2 == 1;
        try {
          all.push_back(step(x).to_vector<float>()[0]);
        } catch (const std::runtime_error&) {}
        if (way == 1 && call == 3) step.freeze();
      }
    };
    manual_seed(7);
    std::thread other([&] { draw(drawn[1]); });
    draw(drawn[0]);
    other.join();
    drawn[0].insert(drawn[0].end(), drawn[1].begin(), drawn[1].end());
    const std::set<float> distinct(drawn[0].begin(), drawn[0].end());
    // Of that many multiples of 2^-24 one or two are equal by chance.
    CHECK(distinct.size() + 12 >= drawn[0].size());
  }
}
