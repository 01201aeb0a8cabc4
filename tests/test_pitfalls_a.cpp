// Silent wrong numbers: graph mode equals eager mode to the bit, from the first call on.
#include <algorithm>
#include <optional>
#include <set>

#include "backends/cpu/allocator.h"
#include "pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

template <class Opt, class Options>
void optimiser_matches(const Options& o, double clip, double dropout) {
  same_in_all_modes([&](const StepOptions& options, Trace& t) {
    Trainer<Opt, Options> w(o, dropout);
    auto step =
        brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y, clip); }, options);
    for (int i = 0; i < 20; ++i) w.log(t, step(randn({5, 6}), randint(0, 3, {5})));
    if (options.mode == Mode::Graph) CHECK(step.stats().recordings == 1);
  });
}

}  // namespace

TEST_CASE("pitfall A1: learning rate, step count and bias correction are never frozen in") {
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Trainer<optim::AdamW, optim::AdamWOptions> w({.lr = 3e-2, .weight_decay = 0.1});
    optim::CosineLR schedule(w.opt, 50);
    auto step =
        brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y); }, options);
    for (int i = 0; i < 50; ++i) {
      w.log(t, step(randn({5, 6}), randint(0, 3, {5})));
      schedule.step();
    }
    if (options.mode == Mode::Graph) CHECK(step.stats().recordings == 1);
  });
  // 10,000 rates: one recording, one build.
  Tensor w = ones({4});
  w.set_requires_grad(true);
  optim::SGD opt({w}, {.lr = 1e-3});
  auto step = brrr::step([&](const Tensor& x) {
    opt.zero_grad();
    (w * x).sum().backward();
    opt.step();
  });
  const Tensor x = ones({4});
  for (int i = 0; i < 10000; ++i) {
    opt.set_lr(1e-9 * (i + 1));
    step(x);
  }
  CHECK(step.stats().recordings == 1);
  CHECK(step.stats().replays == 9999);
}

TEST_CASE("pitfall A2: optimiser state is bit-exact over steps 1 to 20") {
  optimiser_matches<optim::SGD>(optim::SGDOptions{.lr = 0.1}, 0, 0);
  optimiser_matches<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
                                0.5, 0);
  optimiser_matches<optim::SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true}, 0,
                                0.3);
  optimiser_matches<optim::Adam>(optim::AdamOptions{.lr = 1e-2, .weight_decay = 0.1}, 1.0, 0);
  optimiser_matches<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2}, 0.1, 0.2);
}

TEST_CASE("pitfall A3: a branch or scalar that changed is noticed on the very next call") {
  models::Linear layer(4, 4);
  models::Module root;
  root.register_module("head", layer);
  bool squared = false;
  double scale = 2.0;
  auto body = [&](const Tensor& x) {
    Tensor h = layer(x) * scale;
    return squared ? (h * h).sum() : h.exp().sum();
  };
  auto step = brrr::step(body, kEarly);
  const Tensor x = randn({3, 4});
  for (int i = 0; i < 3; ++i) CHECK(same_bits(step(x), body(x)));
  squared = true;
  CHECK(same_bits(step(x), body(x)));
  CHECK(contains(step.explain(), "op differs"));
  CHECK(contains(step.explain(), "exp"));
  CHECK(contains(step.explain(), "found mul instead"));
  scale = 3.0;
  CHECK(same_bits(step(x), body(x)));
  CHECK(contains(step.explain(), "scalar was 2, now 3"));
  const uint64_t before = step.stats().recordings;
  for (int i = 0; i < 20; ++i) {  // A scalar known to vary needs no more recordings.
    scale = 3.0 + i;
    CHECK(same_bits(step(x), body(x)));
  }
  CHECK(step.stats().recordings == before);
}

TEST_CASE("pitfall A3: integer scalars vary like others, and those of draws and masks") {
  int64_t n = 0;
  double p = 0;
  const std::function<Tensor(const Tensor&)> functions[] = {
      [&](const Tensor& x) { return x * n + (x > n - 4).to(kFloat32); },
      [&](const Tensor& x) { return where(arange(x.size(-1)) <= n, x, 0.0).sum(-1, false); },
      [&](const Tensor& x) { return x.pow(n).tril(n - 3); },
      [&](const Tensor& x) { return dropout(x, p, true).sum(); },
      [&](const Tensor& x) { return x.index_select(0, randint(0, n + 1, {5})); },
      [&](const Tensor&) {
        return randint(-n, 3 * n + 1, {4, 4}) * (n + 1);
      },
      [&](const Tensor&) { return full({3}, n, kInt64) / (n + 1) + rand({3}) * n; },
      [&](const Tensor&) { return one_hot(arange(3), n % 2 + 3) * n + arange(n % 2 + 3) * n; },
  };
  const Tensor x = randn({13, 9}), w = x.clone().set_requires_grad();
  for (size_t k = 0; k < std::size(functions); ++k) {
    CAPTURE(k);
    const auto body = [&](const Tensor& in) {
      Tensor y = functions[k](in), g = functions[k](w);
      return std::pair(y, g.requires_grad() ? grad({g.sum()}, {w})[0] : g);
    };
    auto step = brrr::step(body, kEarly);
    for (n = 0; n < 12; ++n) {
      p = 0.05 * static_cast<double>(n);
      manual_seed(static_cast<uint64_t>(n));
      const auto want = body(x);
      manual_seed(static_cast<uint64_t>(n));
      const auto got = step(x);
      CHECK(same_bits(got.first, want.first));
      CHECK(same_bits(got.second, want.second));
    }
    INFO(step.explain());
    CHECK(step.stats().recordings <= 4);  // pow(2) is square.
  }
}

TEST_CASE("pitfall A3: integer scalars that vary may grow beyond their tensor's dtype") {
  int64_t n = 0;
  const Tensor wide = tensor({INT32_MIN, -7, -1, 0, 5, INT32_MAX}).to(kInt32);
  const Tensor narrow = tensor({0, 1, 7, 255}).to(kUInt8);
  const std::function<Tensor(const Tensor&)> functions[] = {
      [&](const Tensor& x) { return x == n; },
      [&](const Tensor& x) { return x + n; },
      [&](const Tensor& x) { return x * n - n; },
      [&](const Tensor& x) { return floor_div(x, n) + remainder(x, n); },
      [&](const Tensor& x) { return clamp(x, -n, n); },
      [&](const Tensor& x) { return maximum(x, n) + minimum(x, n); },
      [&](const Tensor& x) { return (x > n).to(kInt64) * n + x.to(kInt64); },
      [&](const Tensor& x) { return where(x > 0, x, n); },
      [&](const Tensor& x) { return x.clone().fill_(n); },
  };
  for (size_t k = 0; k < std::size(functions); ++k) {
    for (const Tensor& x : {wide, narrow, wide.select(0, 1)}) {
      CAPTURE(k);
      CAPTURE(x.to_string());
      auto step = brrr::step(functions[k], kEarly);
      for (int64_t value : {1, 2, 3, 0, -3, 300, INT32_MAX}) {
        for (int64_t factor : {int64_t{1}, int64_t{1} << 20, int64_t{-1} << 31}) {
          n = value * factor;
          CAPTURE(n);
          Tensor want;
          const std::string error = error_of([&] { want = functions[k](x); });
          if (error.empty()) {
            CHECK(same_bits(step(x), want));
          } else {
            CHECK(error_of([&] { step(x); }) == error);
          }
        }
      }
    }
  }
}

TEST_CASE("pitfall A4: inputs at other addresses, strides, offsets and dtypes") {
  bool wide = false;
  auto body = [&](const Tensor& x) {
    Tensor h = x + 1.0;
    return wide ? h.tanh() : h.relu();
  };
  auto step = brrr::step(body, kEarly);
  const Tensor a = randn({4, 4}), big = randn({8, 8});
  const std::vector<Tensor> inputs = {a,
                                      a.t(),
                                      a.clone(),
                                      big.slice(0, 2, 6).slice(1, 3, 7),
                                      big.slice(0, 0, 8, 2).slice(1, 4, 8),
                                      a.to(kFloat64),
                                      randn({1, 4}).expand({4, 4}),
                                      a.t().clone(),
                                      big.slice(0, 0, 4).slice(1, 0, 4),
                                      randn({4, 1}).expand({4, 4})};
  for (int round = 0; round < 3; ++round) {
    for (const Tensor& x : inputs) CHECK(same_bits(step(x), body(x)));
  }
  // Entries that differ only in an input's layout must not be mistaken for each other.
  auto other = brrr::step(body, kEarly);
  wide = false;
  CHECK(same_bits(other(a), body(a)));
  wide = true;
  CHECK(same_bits(other(a.t()), body(a.t())));
  wide = false;
  CHECK(same_bits(other(a.t()), body(a.t())));
  wide = true;
  CHECK(same_bits(other(a), body(a)));
}

TEST_CASE("pitfall A4: entries that diverge later still differ in an input's layout and dtype") {
  // The first op hides its operand's layout and dtype: its result is a dense bool in any case.
  int way = 0;
  auto body = [&](const Tensor& x) {
    const Tensor positive = x > 0.0;
    return way == 0 ? positive.to(kFloat32).exp() : way == 1 ? positive.to(kFloat64) : !positive;
  };
  auto step = brrr::step(body, kEarly);
  const Tensor a = randn({5, 5}), d = randn({5, 5}).to(kFloat64);
  for (int i = 0; i < 24; ++i) {
    way = i % 3;
    const Tensor x = i / 3 % 3 == 0 ? a : i / 3 % 3 == 1 ? a.t() : d;
    CHECK(same_bits(step(x), body(x)));
  }
}

TEST_CASE("pitfall A5: inputs, parameters and constants freed after recording") {
  std::optional<Tensor> constant = randn({64, 64});
  auto model = std::make_unique<models::Linear>(64, 64);
  std::vector<Tensor> weights = model->parameters();
  auto step =
      brrr::step([&](const Tensor& x) { return ((*model)(x) * *constant).detach(); }, kEarly);
  const Tensor keep = randn({64, 64});
  Tensor expected;
  {
    NoGradGuard guard;
    expected = (*model)(keep) * *constant;
    for (int i = 0; i < 3; ++i) step(keep.clone());
    step.freeze();
    CHECK(same_bits(step(keep.clone()), expected));
    // Only the frozen step references these now.
    weights.clear();
    model.reset();
    constant.reset();
    cpu::trim();
    const Tensor noise = full({512, 512}, 1e30);
    for (int i = 0; i < 3; ++i) CHECK(same_bits(step(keep.clone()), expected));
  }
}

TEST_CASE("pitfall A6: results are never overwritten by later steps") {
  Trainer<optim::SGD, optim::SGDOptions> w({.lr = 0.1});
  auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y); }, kEarly);
  std::vector<Tensor> held;
  std::vector<std::vector<char>> seen;
  for (int i = 0; i < 10; ++i) {
    held.push_back(step(randn({5, 6}), randint(0, 3, {5})));
    held.push_back(w.model.parameters()[0].grad());
    seen.push_back(comparable_bytes(held[held.size() - 2]));
    seen.push_back(comparable_bytes(held.back()));
  }
  for (size_t i = 0; i < held.size(); ++i) CHECK(comparable_bytes(held[i]) == seen[i]);
  CHECK(std::set<std::vector<char>>(seen.begin(), seen.end()).size() == held.size());
}

TEST_CASE("pitfall A7: outputs fed back, overlapping and repeated inputs") {
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    auto step = brrr::step(
        [](const Tensor& a, const Tensor& b) {
          Tensor c = a * 2.0 + b;
          a.add_(b * 0.5);
          return std::tuple{c, b + a};
        },
        options);
    Tensor a = randn({6}), b = randn({6});
    for (int i = 0; i < 4; ++i) {
      std::tie(a, b) = step(a, b);
      t.add({a, b});
    }
    const Tensor base = randn({12});
    const std::pair<Tensor, Tensor> pairs[] = {{a, a},
                                               {a, b},
                                               {base.slice(0, 0, 6), base.slice(0, 3, 9)},
                                               {base.slice(0, 3, 9), base.slice(0, 0, 6)},
                                               {base.slice(0, 0, 6), base.slice(0, 6, 12)},
                                               {base.slice(0, 1, 7), base.slice(0, 1, 7)},
                                               {b, b},
                                               {b, a}};
    for (int round = 0; round < 3; ++round) {
      for (const auto& [x, y] : pairs) {
        const auto [c, d] = step(x, y);
        t.add({c, d, x, y, base});
      }
    }
  });
}

TEST_CASE("pitfall A8: a new dropout mask every time, the eager one, in backward too") {
  std::vector<std::vector<char>> masks[2];
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    manual_seed(3);
    Tensor x = ones({16, 4});
    x.set_requires_grad(true);
    auto step = brrr::step(
        [&] {
          x.set_grad({});
          Tensor y = dropout(x, 0.5, true);
          y.sum().backward();
          return y.detach();
        },
        mode);
    for (int i = 0; i < 100; ++i) {
      const Tensor y = step();
      CHECK(same_bits(y, x.grad()));
      masks[mode == Mode::Graph].push_back(comparable_bytes(y));
    }
  }
  CHECK(masks[0] == masks[1]);
  CHECK(std::set<std::vector<char>>(masks[0].begin(), masks[0].end()).size() == 100);
}

TEST_CASE("pitfall A9: recording, warm-up and destruction change no state") {
  for (int steps : {1, 2, 3, 5}) {
    same_in_all_modes([&](const StepOptions& options, Trace& t) {
      Trainer<optim::Adam, optim::AdamOptions> w({.lr = 1e-2}, 0.5);
      {
        auto step =
            brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y); }, options);
        for (int i = 0; i < steps; ++i) w.log(t, step(randn({4, 6}), randint(0, 3, {4})));
        t.add_rng();
      }
      // The step is destroyed; the random stream continues.
      t.add_rng();
      t.add(randn({3}));
    });
  }
}

TEST_CASE("pitfall A10: first gradients that come later, accumulation, unfreezing") {
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Trainer<optim::AdamW, optim::AdamWOptions> w({.lr = 1e-2});
    const auto params = w.model.parameters();
    params[0].set_requires_grad(false);
    params[1].set_requires_grad(false);
    auto step =
        brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y, 1.0); }, options);
    for (int i = 0; i < 12; ++i) {
      if (i == 5) params[0].set_requires_grad(true);
      if (i == 7) params[1].set_requires_grad(true);
      if (i == 9) params[2].set_requires_grad(false);
      w.log(t, step(randn({4, 6}), randint(0, 3, {4})));
    }
  });
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Trainer<optim::SGD, optim::SGDOptions> w({.lr = 0.1, .momentum = 0.9});
    auto micro = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          Tensor loss = cross_entropy(w.model(x), y) * 0.25;
          loss.backward();
          return loss.detach();
        },
        options);
    auto update = brrr::step([&] { w.opt.step(); }, options);
    for (int i = 0; i < 12; ++i) {
      t.add(micro(randn({4, 6}), randint(0, 3, {4})));
      if (i % 4 != 3) continue;
      update();
      w.log(t, {});
      w.opt.zero_grad();
    }
  });
}

TEST_CASE("pitfall A11: the smaller last batch of an epoch is right and costs one entry") {
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Trainer<optim::SGD, optim::SGDOptions> w({.lr = 0.1});
    auto step =
        brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y); }, options);
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int64_t n : {4, 4, 4, 1}) w.log(t, step(randn({n, 6}), randint(0, 3, {n})));
    }
    if (options.mode == Mode::Graph) CHECK(step.stats().recordings == 2);
  });
}

TEST_CASE("pitfall A13: fusion changes no rounding in strict mode") {
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    const Tensor w = randn({33}), b = randn({33});
    auto step = brrr::step(
        [&](const Tensor& x) {
          Tensor h = gelu(x * w + b) * 1.1 + x / 3.0;
          h = h.tanh().exp() - h.sigmoid() * (h + 1.0).abs().sqrt() + (h * 0.3).sin();
          Tensor g = softmax(layer_norm(h, {33}, w, b), -1);
          return std::vector<Tensor>{h,
                                     g,
                                     h.sum({0}),
                                     (g * h).mean(),
                                     h.to(kFloat64) * 0.1,
                                     clamp(h, -0.5, 0.5).square().sum({1})};
        },
        options);
    for (int i = 0; i < 4; ++i) t.add(step(randn({7, 33}) * 3.0));
  });
}

TEST_CASE("pitfall A14: matrix products repeat to the bit") {
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    const Tensor w = randn({70, 130});
    auto step = brrr::step(
        [&](const Tensor& x) {
          return std::tuple{x.matmul(w), w.t().matmul(x.t()), x.matmul(x.t())};
        },
        options);
    const Tensor x = randn({33, 70}), moved = randn({34, 70});
    moved.slice(0, 1, 34).copy_(x);
    for (int i = 0; i < 3; ++i) {
      const auto [a, b, c] = step(x);
      const auto [d, e, f] = step(moved.slice(0, 1, 34));
      CHECK(same_bits(a, d));
      CHECK(same_bits(b, e));
      CHECK(same_bits(c, f));
      t.add({a, b, c});
    }
  });
}
