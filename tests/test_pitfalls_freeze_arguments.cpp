// Frozen steps: memory that arguments share with each other, with captured tensors, with results.
#include <functional>

#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("pitfall A25: a frozen step sees that arguments alias differently, or not any more") {
  auto body = [](const Tensor& a, const Tensor& b) { return a * 2.0 - b; };
  auto step = brrr::step(body, kEarly);
  const Tensor x = randn({4}), y = randn({4}), both = randn({8});
  step(x, x);
  step.freeze();
  CHECK(same_bits(step(x, x), body(x, x)));
  CHECK(same_bits(step(x, y), body(x, y)));
  CHECK(same_bits(step(y, y), body(y, y)));
  CHECK(same_bits(step(y, x), body(y, x)));
  for (int i = 0; i < 3; ++i) {
    const Tensor p = both.slice(0, 0, 4), q = both.slice(0, 4, 8);
    CHECK(same_bits(step(p, q), body(p, q)));
    CHECK(same_bits(step(q, p), body(q, p)));
    CHECK(same_bits(step(p, p), body(p, p)));
    CHECK(same_bits(step(x, Tensor(y)), body(x, y)));
  }
  // One tensor passed twice, a different one each time, differs from two windows of one tensor.
  for (const Tensor& t : {x, y}) step(t, t);
  const Tensor p = both.slice(0, 0, 4), q = both.slice(0, 4, 8);
  CHECK(same_bits(step(p, q), body(p, q)));
}

TEST_CASE("pitfall A25: frozen, a step may use its argument from the middle on, or backwards") {
  using Fn = std::function<Tensor(const Tensor&, const Tensor&)>;
  const Fn functions[] = {
      [](const Tensor& x, const Tensor&) { return x.select(0, -1).sum(); },
      [](const Tensor& x, const Tensor&) { return x.slice(0, 2, 4) + x.slice(0, 0, 2); },
      [](const Tensor& x, const Tensor& y) { return x.select(0, 3) * y.select(0, 2) + y; },
      [](const Tensor& x, const Tensor&) {
        return x.slice(0, 1, 3).add_(1.0).sum() + x.select(0, 0);
      },
  };
  const Tensor many = randn({64, 4});
  for (const Fn& fn : functions) {
    int runs = 0;
    auto step =
        brrr::step([&](const Tensor& x, const Tensor& y) { return ++runs, fn(x, y); }, kEarly);
    for (int64_t call = 0; call < 8; ++call) {
      if (call == 3) step.freeze();
      const Tensor x = call % 2 ? randn({4, 4}) : many.slice(0, 4 * call, 4 * call + 4);
      const Tensor y = call == 7 ? x : randn({4, 4}), copy = x.clone();
      const Tensor want = fn(copy, call == 7 ? copy : y);
      CHECK(same_bits(step(x, y), want));
      CHECK(same_bits(x, copy));
    }
    CHECK(runs <= 4);  // The last call's arguments are one tensor.
    const Tensor pair = randn({8, 4}), x = pair.slice(0, 0, 4), y = pair.slice(0, 4, 8);
    CHECK(same_bits(step(y.clone(), x.clone()), fn(y.clone(), x.clone())));
    const Tensor both = pair.clone();
    CHECK(same_bits(step(y, x), fn(both.slice(0, 4, 8), both.slice(0, 0, 4))));
    CHECK(same_bits(pair, both));
  }
}

TEST_CASE("pitfall A25: an argument that was the captured tensor until the step was frozen") {
  using Fn = std::function<Tensor(const Tensor& captured, const Tensor& x)>;
  const Fn functions[] = {[](const Tensor& c, const Tensor& x) { return x * 10.0 + c; },
                          [](const Tensor& c, const Tensor&) { return c * 3.0; },
                          [](const Tensor& c, const Tensor& x) { return x + c.add_(1.0); }};
  for (const Fn& fn : functions) {
    std::vector<float> all[2];
    for (const bool frozen : {false, true}) {
      const Tensor captured = ones({2});
      auto step = brrr::step([&](const Tensor& x) { return fn(captured, x); });
      for (int call = 0; call < 3; ++call) step(captured);
      if (frozen) step.freeze();
      for (const float v : {5.f, 6.f, 7.f}) {
        all[frozen].push_back(step(full({2}, v)).to_vector<float>()[0]);
        all[frozen].push_back(step(captured).to_vector<float>()[0]);
      }
    }
    CHECK(all[0] == all[1]);
  }
}

TEST_CASE("pitfall A25: a captured tensor that is an argument at times stays the captured one") {
  const Tensor captured = ones({4}), other = zeros({4});
  auto step = brrr::step([&](const Tensor&) { return captured * 2.0; });
  for (const Tensor& t : {captured, other, captured}) step(t);
  step.freeze();
  for (const Tensor& t : {other, captured, other}) CHECK(same_bits(step(t), captured * 2.0));
}

TEST_CASE("pitfall A25: a captured tensor in an argument's memory refuses to freeze") {
  const Tensor all = randn({8});
  for (const Tensor& x : {all.slice(0, 4, 8), all.slice(0, 0, 4), all.slice(0, 8, 8)}) {
    auto step = brrr::step([&](const Tensor& in) { return in.sum() + all.slice(0, 2, 6).sum(); });
    for (int call = 0; call < 3; ++call) step(x);
    CHECK(contains(error_of([&] { step.freeze(); }), "shares its memory"));
  }
}

TEST_CASE("pitfall A25: windows of a captured tensor, passed as arguments, are not the tensor") {
  using Pattern = std::vector<int>;
  const Pattern patterns[] = {{2, 0, -1, 1, 1}, {0, 3, -1, 4, 4},       {3, 5, -1, 4, 5, 3},
                              {3, 3, -1, 4, 4}, {0, 0, -1, 2, 0, 1, 1}, {2, 3, 5, -1, 4, 0}};
  for (const bool reads : {false, true}) {
    for (const Pattern& pattern : patterns) {
      std::vector<float> all[2];
      for (const bool frozen : {false, true}) {
        const Tensor captured = zeros({6, 8}), other = full({6, 8}, 10.0), few = full({3, 8}, 50.0);
        auto step = brrr::step([&](const Tensor& x) {
          captured.add_(1.0);
          return reads ? x + captured.sum() : captured * 2.0;
        });
        for (const int which : pattern) {
          if (which < 0) {
            if (frozen) error_of([&] { step.freeze(); });
            continue;
          }
          const Tensor list[] = {captured,
                                 other,
                                 captured.slice(0, 1, 4),
                                 captured.slice(0, 0, 3),
                                 few,
                                 captured.slice(0, 3, 6)};
          for (const Tensor& t : {step(list[which]), captured, other, few}) {
            all[frozen].push_back(t.sum().item<float>());
          }
        }
      }
      CHECK(all[0] == all[1]);
    }
  }
}

TEST_CASE("pitfall A25: an argument that a frozen step writes") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    const Tensor first = ones({3}), second = ones({3});
    auto step = brrr::step(
        [](const Tensor& x) {
          x.add_(1.0);
          x.mul_(2.0);
        },
        mode);
    step(first);
    step(first);
    if (mode == Mode::Graph) step.freeze();
    step(second);
    step(second);
    CHECK(first.version() == 4);
    CHECK(second.version() == 4);
    CHECK(same_bits(first, second));
    const size_t live = live_bytes();
    { step(ones({3})); }
    CHECK(live_bytes() == live);  // Arguments are not retained.
  }
}

TEST_CASE("pitfall A25: an argument cut from captured data, and history given to outer tensors") {
  const Tensor data = randn({10, 3});
  auto cut = brrr::step([&](const Tensor& x) { return x * 2.0 + data.sum({0}); }, kEarly);
  cut(data.slice(0, 0, 4));
  CHECK(contains(error_of([&] { cut.freeze(); }), "pass its clone()"));
  Tensor w = ones({3}), state = zeros({3});
  w.set_requires_grad(true);
  auto grows = brrr::step([&] { state.add_(w); }, kEarly);
  grows();
  CHECK(contains(error_of([&] { grows.freeze(); }), "history"));
  Tensor h = (w * 2.0).exp();
  auto uses = brrr::step(
      [&] {
        w.set_grad({});
        h.sum().backward();
      },
      kEarly);
  uses();
  CHECK(contains(error_of([&] { uses.freeze(); }), "tape from before"));
  w.set_grad({});
  state.sum().backward();
  CHECK(same_bits(w.grad(), ones({3})));
}
