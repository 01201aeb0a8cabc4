// Frozen steps: failures, gradients that stay in place, differences seen before freezing.
#include <functional>
#include <optional>

#include "backends/cpu/allocator.h"
#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// A step whose backward reaches `w`, and the history that the caller's `h` has by then.
auto goes_into(const Tensor& h, const Tensor& w) {
  return brrr::step(
      [&](const Tensor& x) {
        w.set_grad({});
        const Tensor loss = (h * w * x).sum();
        loss.backward({}, true);
        return loss.detach() * 1.0;
      },
      kEarly);
}

}  // namespace

TEST_CASE("pitfall A25: a frozen step that fails has no effect, and does not keep failing" *
          doctest::test_suite("host")) {
  Tensor sum = zeros({4});
  auto step = brrr::step(
      [&](const Tensor& x) {
        sum.add_(x);
        return dropout(x, 0.5, true) + randn({4});
      },
      kEarly);
  step(ones({4}));
  step.freeze();
  step(ones({4}));
  int failures = 0;
  for (int k = 0; k < 8; ++k) {
    const Tensor old = sum.clone(), x = ones({4});
    const RngState rng = rng_state();
    cpu::fail_after(k);
    const std::string text = error_of([&] { step(x); });
    cpu::fail_after(-1);
    if (text.empty()) break;
    ++failures;
    CHECK(same_bits(sum, old));
    CHECK(rng_state().draw == rng.draw);
  }
  CHECK(failures > 0);
  CHECK(step(ones({4})).numel() == 4);
}

TEST_CASE("pitfall A25: a frozen step writes gradients in their memory unless they are shared" *
          doctest::test_suite("host")) {
  const Tensor w = randn({8});
  w.set_requires_grad();
  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& ids) {
        w.set_grad({});
        const Tensor loss = (w * x).gather(0, ids).sum();
        loss.backward();
        return loss.detach();
      },
      kEarly);
  const Tensor ids = arange(8);
  const auto gradient_of = [&](const Tensor& x) {
    step(x, ids);
    return same_bits(w.grad(), x);
  };
  CHECK(gradient_of(randn({8})));
  CHECK(gradient_of(randn({8})));
  step.freeze();
  CHECK(gradient_of(randn({8})));
  const auto* const stays = w.grad().impl();
  CHECK(gradient_of(randn({8})));
  w.grad().mul_(3.0);
  CHECK(gradient_of(randn({8})));
  CHECK(w.grad().impl() == stays);
  for (const bool view : {false, true}) {
    const Tensor held = view ? w.grad().slice(0, 2, 6) : w.grad(), was = held.clone();
    CHECK(gradient_of(randn({8})));
    CHECK(same_bits(held, was));
  }
  const Tensor was = w.grad().clone();
  step(w.grad(), ids);
  CHECK(same_bits(w.grad(), was));
  CHECK(contains(error_of([&] { step(randn({8}), full({8}, 8.0, kInt64)); }), "out of range"));
  CHECK(same_bits(w.grad(), was));
  CHECK(gradient_of(randn({8})));
}

TEST_CASE("pitfall A25: a gradient that stays in place may be a result, and another leaf's") {
  const Tensor a = randn({4}).set_requires_grad(), b = randn({4}).set_requires_grad();
  auto step = brrr::step(
      [&](const Tensor& x) {
        a.set_grad({});
        b.set_grad({});
        (a * x).sum().backward();
        b.set_grad(a.grad());
        const Tensor twice = x * 2.0;
        return std::vector<Tensor>{a.grad(), a.grad().slice(0, 1, 3), twice, twice};
      },
      kEarly);
  for (int k = 0; k < 6; ++k) {
    if (k == 2) step.freeze();
    if (k > 3) b.set_grad(b.grad().clone());  // Now a's gradient is no longer shared.
    const Tensor x = randn({4});
    const auto results = step(x);
    CHECK(same_bits({x, x, x, x.slice(0, 1, 3)}, {a.grad(), b.grad(), results[0], results[1]}));
    CHECK(b.grad().is_same(a.grad()));
    CHECK(results[0].is_same(a.grad()));
    CHECK(results[3].is_same(results[2]));
  }
}

TEST_CASE("pitfall A25: a gradient that a frozen step found missing is there at a later call") {
  const Tensor a = ones({4}).set_requires_grad(), b = ones({4}).set_requires_grad();
  optim::SGD opt({a, b}, {.lr = 0.5});
  auto step = brrr::step(
      [&](const Tensor& x) {
        a.set_grad({});
        (a * x).sum().backward();
        opt.step();
      },
      kEarly);
  for (int k = 0; k < 4; ++k) {
    if (k == 2) step.freeze();
    if (k == 3) b.set_grad(ones({4}));
    step(ones({4}));
    CHECK(b.to_vector<float>()[0] == (k == 3 ? 0.5f : 1.0f));
  }
}

TEST_CASE("pitfall A25: captured tensors that were others before, draws of the step's own stream") {
  const auto refusal = [](auto& step) { return error_of([&] { step.freeze(); }); };
  const Tensor data = arange(8).to(kFloat32);
  int64_t at = 0;
  Tensor held = ones({2});
  auto moves = brrr::step([&] { return data.slice(0, at, at + 2) * 2.0; }, kEarly);
  for (; at < 3; ++at) moves();
  CHECK(contains(refusal(moves), "was another one, or another part"));
  at = 2;
  moves();
  moves();
  CHECK(refusal(moves) == "");  // The slice no longer moves.
  auto carries = brrr::step([&](const Tensor& x) { return held * x; }, kEarly);
  for (int k = 0; k < 4; ++k) held = carries(full({2}, 0.5));
  CHECK(contains(refusal(carries), "pass it as an argument"));
  auto draws = brrr::step(
      [&] {
        const RngScope own(123);
        return randn({2});
      },
      kEarly);
  const Tensor first = draws();
  CHECK(same_bits(draws(), first));
  CHECK(contains(refusal(draws), "draws from a random stream of its own (randn("));
  double k = 1;
  auto varies = brrr::step([&](const Tensor& x) { return x.exp() * k; }, kEarly);
  for (; k < 4; ++k) varies(held);
  CHECK(contains(refusal(varies), "a scalar in it varies (mul("));
  auto leaf = brrr::step([] { return randn({2}).set_requires_grad(); }, kEarly);
  leaf();
  CHECK(contains(refusal(leaf), "a leaf that requires grad"));
}

TEST_CASE("pitfall A25: a captured tensor has got a history in place since") {
  for (const bool frozen : {false, true}) {
    Tensor h = ones({2});
    const Tensor w = full({2}, 2.0).set_requires_grad();
    auto step = goes_into(h, w);
    for (int call = 0; call < 3; ++call) step(ones({2}));
    if (frozen) step.freeze();
    h.add_(w * 3.0);
    step(ones({2}));
    CHECK(w.grad().to_vector<float>() == std::vector<float>{13, 13});
    // A captured tensor that is also the argument.
    h = ones({2});
    const Tensor same = h.detach();
    auto both = goes_into(h, w);
    for (int call = 0; call < 3; ++call) both(same);
    if (frozen) both.freeze();
    h.add_(w * 3.0);
    both(same);
    CHECK(w.grad().to_vector<float>() == std::vector<float>{91, 91});
  }
  const Tensor w = ones({2}).set_requires_grad(), h = w * 3.0;
  auto asks = brrr::step(
      [&](const Tensor& x) { return (x * h).detach() + (h.requires_grad() ? 2.0 : 1.0); }, kEarly);
  for (int call = 0; call < 3; ++call) asks(ones({2}));
  asks.freeze();
  h.zero_();  // It has lost its history.
  CHECK(same_bits(asks(ones({2})), ones({2})));
}

TEST_CASE("pitfall A25: backward through a tape from before the step is not frozen, kept or not") {
  const Tensor w = full({2}, 2.0).set_requires_grad();
  const Tensor h = w * 3.0;
  auto step = goes_into(h, w);
  for (int call = 0; call < 2; ++call) step(ones({2}));
  CHECK(contains(error_of([&] { step.freeze(); }), "a tape from before the step"));
  h.copy_(ones({2}));  // It has no history any more.
  for (int call = 0; call < 2; ++call) step(ones({2}));
  CHECK(w.grad().to_vector<float>() == std::vector<float>{1, 1});
  CHECK(error_of([&] { step.freeze(); }) == "");
}

TEST_CASE("pitfall A25: a batch of another size does not make a scalar count as varying") {
  const Tensor w = randn({3, 4}).set_requires_grad();
  auto step = brrr::step(
      [&](const Tensor& x) {
        w.set_grad({});
        const Tensor loss = mse_loss(linear(x, w), ones({x.size(0), 3}));
        loss.backward();
        return loss.detach();
      },
      kEarly);
  for (const int64_t n : {8, 8, 8, 3, 3}) step(randn({n, 4}));
  CHECK(error_of([&] { step.freeze(); }) == "");
}

TEST_CASE("pitfall A25: an argument without elements may be frozen, whatever its address") {
  const std::function<Tensor()> all[] = {[] {
                                           return zeros({0, 0, 4, 64});
                                         },
                                         [] {
                                           return zeros({0, 6}).slice(1, 0, 6, 2);
                                         },
                                         [] {
                                           return zeros({4, 6}).slice(0, 1, 1);
                                         },
                                         [] {
                                           return zeros({3, 0}).t();
                                         }};
  for (const auto& make : all) {
    auto step = brrr::step([](const Tensor& x) { return x * 2.0; });
    for (int i = 0; i < 3; ++i) step(make());
    step.freeze();
    CHECK(step(make()).sizes() == make().sizes());
  }
}

TEST_CASE("pitfall A25: a step that drew otherwise when it was recorded refuses to freeze") {
  for (const bool scope : {false, true}) {
    manual_seed(3);
    int call = 0;
    auto step = brrr::step([&](const Tensor& x) {
      std::optional<RngScope> own;
      if (call == 0 && scope) own.emplace(7);
      if (call == 0 && !scope) set_rng_state({3, 1000});
      ++call;
      return dropout(x, 0.5, true);
    });
    for (int i = 0; i < 3; ++i) step(ones({6}));
    const std::string said = error_of([&] { step.freeze(); });
    CHECK_MESSAGE(said.find("did so when it was recorded") != std::string::npos, said);
  }
}

TEST_CASE("pitfall A25: a step that cannot be frozen holds no captured tensor beyond its call" *
          doctest::test_suite("host")) {
  Tensor h = zeros({4096});
  auto step = brrr::step([&](const Tensor& x) { h = h * 0.9 + x; });
  const Tensor x = ones({4096});
  const size_t before = memory_stats(kCPU).live;
  for (int i = 0; i < 4; ++i) {
    step(x);
    CHECK(memory_stats(kCPU).live == before);
  }
}

TEST_CASE("pitfall A25: a frozen step creates tensors on the current default device") {
  if (!cuda_available()) return;
  const Device was = default_device();
  auto step = brrr::step([] { return ones({2}) * 2.0; });
  for (int i = 0; i < 3; ++i) step();
  step.freeze();
  for (const Device device : {kCUDA, kCPU}) {
    set_default_device(device);
    CHECK(step().device() == device);
  }
  set_default_device(was);
}

TEST_CASE("pitfall A25: a frozen step distinguishes a defined argument from an undefined one") {
  const auto freeze = [](auto fn, const Tensor& k) {
    auto s = brrr::step(fn, kEarly);
    for (int call = 0; call < 3; ++call) s(ones({4}), k);
    s.freeze();
    return s;
  };
  const Tensor x = ones({4}) * 7.0;
  const auto uses = [](const Tensor& a, const Tensor& k) { return k.defined() ? a * k : a + 1.0; };
  auto without = freeze(uses, Tensor());
  CHECK(same_bits(without(x, full({}, 5.0)), x * 5.0));
  CHECK(same_bits(without(x, Tensor()), x + 1.0));
  const auto asks = [](const Tensor& a, const Tensor& k) { return a + (k.defined() ? 2.0 : 1.0); };
  auto with = freeze(asks, ones({3}));
  CHECK(same_bits(with(x, Tensor()), x + 1.0));
  CHECK(same_bits(with(x, ones({3})), x + 2.0));
}

TEST_CASE("pitfall A25: a property of an argument refuses to freeze, or its change is noticed") {
  const Tensor p = ones({4}), q = ones({4});
  const auto sets_grad = [](const Tensor& x, const Tensor& leaf) {
    leaf.set_grad(x * 2.0);
    return x + 1.0;
  };
  auto sets = brrr::step(sets_grad, kEarly);
  for (int call = 0; call < 3; ++call) sets(ones({4}), p);
  CHECK(contains(error_of([&] { sets.freeze(); }), "gradient of an argument"));
  const auto asks_leaf = [](const Tensor& x, const Tensor& leaf) {
    return x + (leaf.requires_grad() ? 2.0 : 1.0);
  };
  auto asks = brrr::step(asks_leaf, kEarly);
  for (int call = 0; call < 3; ++call) asks(ones({4}), p);
  asks.freeze();
  CHECK(same_bits(asks(ones({4}), q.detach().set_requires_grad(true)), ones({4}) + 2.0));
  // A tape from before the step that leads to none of the inputs.
  const Tensor w = ones({4}).set_requires_grad(true), a = ones({4}).set_requires_grad(true);
  const Tensor h = (w * 2.0).exp();
  auto goes = brrr::step([&] { return grad({(h * a).sum()}, {a})[0]; }, kEarly);
  for (int call = 0; call < 3; ++call) goes();
  CHECK(contains(error_of([&] { goes.freeze(); }), "tape from before"));
}

TEST_CASE("pitfall A25: a frozen step does not write what eager mode refuses to write") {
  Tensor w = zeros({8}), part;
  w.set_requires_grad(true);
  {
    const NoGradGuard guard;
    part = w.slice(0, 0, 4);
  }
  auto s = brrr::step(
      [](Tensor x) {
        x.add_(1.0);
        return x * 2.0;
      },
      kEarly);
  for (int call = 0; call < 3; ++call) s(zeros({4}));
  s.freeze();
  CHECK(contains(error_of([&] { s(part); }), "made under NoGradGuard"));
  CHECK(same_bits(w.detach(), zeros({8})));
  CHECK(same_bits(s(zeros({4})), ones({4}) * 2.0));
}
