// Optimisers against PyTorch's formulas in double, clipping, schedules.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "autograd/autograd.h"
#include "core/error.h"
#include "graph/step.h"
#include "models/mlp.h"
#include "models/schedule.h"
#include "ops/factory_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"

using namespace brrr;

namespace {

Tensor parameter(const std::vector<double>& v, DType dtype = kFloat64) {
  Tensor t = tensor(v).to(dtype).clone();
  t.set_requires_grad(true);
  return t;
}

// PyTorch's single-tensor formulas for one scalar parameter.
struct Reference {
  double p, lr, wd;
  double m = 0, v = 0, buffer = 0;
  int t = 0;

  void sgd(double g, double momentum, bool nesterov) {
    g += wd * p;
    if (momentum > 0) {
      buffer = t++ ? momentum * buffer + g : g;
      g = nesterov ? g + momentum * buffer : buffer;
    }
    p -= lr * g;
  }
  void adam(double g, double b1, double b2, double eps, bool decoupled) {
    ++t;
    if (decoupled)
      p *= 1 - lr * wd;
    else
      g += wd * p;
    m += (1 - b1) * (g - m);
    v = b2 * v + (1 - b2) * g * g;
    const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(b2, t)) + eps;
    p -= lr / (1 - std::pow(b1, t)) * m / denominator;
  }
};

const std::vector<double> kStart = {0.5, -1.25, 3.0, 0.0};

double gradient(int step, size_t i) {
  return std::sin(1.7 * step + 0.9 * static_cast<double>(i)) + 0.1;
}

// Runs `steps` steps with a falling lr, against the reference.
void compare(optim::Optimizer& opt, const Tensor& p, double tolerance,
             const std::function<void(Reference&, double)>& step) {
  std::vector<Reference> refs;
  for (double v : kStart) refs.push_back({v, opt.lr(), opt.weight_decay()});
  for (int s = 0; s < 20; ++s) {
    const double lr = 0.05 * (1 - s / 40.0);
    opt.set_lr(lr);
    std::vector<double> g;
    for (size_t i = 0; i < refs.size(); ++i) g.push_back(gradient(s, i));
    p.set_grad(tensor(g).to(p.dtype()));
    opt.step();
    const std::vector<double> now = p.to_vector<double>();
    for (size_t i = 0; i < refs.size(); ++i) {
      refs[i].lr = lr;
      step(refs[i], g[i]);
      CHECK(now[i] == doctest::Approx(refs[i].p).epsilon(tolerance));
    }
  }
}

}  // namespace

TEST_CASE("optimisers equal PyTorch's formulas for 20 steps") {
  for (DType dtype : {kFloat64, kFloat32}) {
    const double tolerance = dtype == kFloat64 ? 1e-12 : 2e-5;
    CAPTURE(name(dtype));
    for (double momentum : {0.0, 0.9}) {
      for (bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        Tensor p = parameter(kStart, dtype);
        optim::SGD opt(
            {p}, {.lr = 0.1, .momentum = momentum, .nesterov = nesterov, .weight_decay = 0.01});
        compare(opt, p, tolerance, [&](Reference& r, double g) { r.sgd(g, momentum, nesterov); });
      }
    }
    Tensor p = parameter(kStart, dtype);
    optim::Adam adam({p}, {.lr = 0.1, .betas = {0.8, 0.99}, .weight_decay = 0.1});
    compare(adam, p, tolerance, [](Reference& r, double g) { r.adam(g, 0.8, 0.99, 1e-8, false); });
    Tensor q = parameter(kStart, dtype);
    optim::AdamW adamw({q}, {.lr = 0.1, .weight_decay = 0.1});
    compare(adamw, q, tolerance, [](Reference& r, double g) { r.adam(g, 0.9, 0.999, 1e-8, true); });
  }
}

TEST_CASE("optimisers keep float32 state for 16-bit parameters") {
  Tensor p = parameter(kStart, kBFloat16);
  optim::AdamW opt({p}, {.lr = 0.1});
  CHECK(opt.state_dict().at("0.exp_avg").dtype() == kFloat32);
  p.set_grad(ones_like(p));
  opt.step();
  CHECK(p.dtype() == kBFloat16);
  CHECK(p.to_vector<double>()[0] == doctest::Approx(0.4).epsilon(0.01));
}

TEST_CASE("pitfall A10: a parameter without a gradient keeps value, state and step") {
  Tensor p = parameter({1.0}), q = parameter({1.0});
  optim::AdamW opt({p, q}, {.lr = 0.1});
  for (int i = 0; i < 5; ++i) {
    p.set_grad(tensor(std::vector<double>{0.5}));
    opt.step();
  }
  CHECK(q.item<double>() == 1.0);
  CHECK(opt.state_dict().at("1.beta1_power").item<double>() == 1.0);
  opt.zero_grad();
  CHECK_FALSE(p.grad().defined());
  q.set_grad(tensor(std::vector<double>{0.5}));
  const double before = p.item<double>();
  opt.step();
  CHECK(p.item<double>() == before);
  // Adam's first step changes a parameter by lr, whenever its first gradient comes.
  CHECK(q.item<double>() == doctest::Approx(1 - 0.1 * 0.01 - 0.1).epsilon(1e-6));
}

TEST_CASE("optimisers: bad options and lists are errors") {
  Tensor p = parameter({1.0});
  CHECK_THROWS_AS(optim::SGD({}, {}), Error);
  CHECK_THROWS_AS(optim::SGD({p, p}, {}), Error);
  CHECK_THROWS_AS(optim::SGD({p}, {.lr = -1}), Error);
  CHECK_THROWS_AS(optim::SGD({p}, {.nesterov = true}), Error);
  CHECK_THROWS_AS(optim::Adam({p}, {.betas = {1.0, 0.9}}), Error);
  CHECK_THROWS_AS(optim::Adam({zeros({2}, kInt64)}, {}), Error);
  CHECK_THROWS_WITH_AS(optim::Adam({Tensor()}, {}),
                       "Adam: parameter 0 (an undefined tensor) must be a floating leaf", Error);
  optim::SGD opt({p}, {});
  CHECK_THROWS_AS(opt.set_lr(std::numeric_limits<double>::quiet_NaN()), Error);
}

TEST_CASE("optimisers: saved state continues to the last bit") {
  const auto run = [](optim::Optimizer& o, const Tensor& p, int from, int to) {
    for (int s = from; s < to; ++s) {
      p.set_grad(tensor(std::vector<double>{gradient(s, 0), gradient(s, 1)}));
      o.step();
    }
  };
  Tensor a = parameter({1.0, 2.0});
  optim::AdamW one({a}, {.lr = 0.01});
  run(one, a, 0, 7);
  Tensor b = a.detach().clone().set_requires_grad(true);
  StateDict saved;
  for (auto& [name, t] : one.state_dict()) saved[name] = t.clone();
  optim::AdamW two({b}, {.lr = 0.5});
  two.load_state_dict(saved);
  CHECK(two.lr() == 0.01);
  run(one, a, 7, 12);
  run(two, b, 7, 12);
  CHECK(a.to_vector<double>() == b.to_vector<double>());
  for (const double power : {-1.0, 1.5, std::nan("")}) {
    StateDict bad = saved;
    bad["0.beta2_power"] = full({}, power, kFloat64);
    CHECK_THROWS_WITH_AS(two.load_state_dict(bad), doctest::Contains("not a power of a beta"),
                         Error);
  }
  saved.erase("0.exp_avg");
  CHECK_THROWS_AS(two.load_state_dict(saved), Error);
}

TEST_CASE("pitfall A24: clip_grad_norm_ scales a shared gradient once") {
  Tensor p = parameter({1.0, 2.0}), q = parameter({3.0, 4.0}), r = parameter({1.0});
  const Tensor g = tensor(std::vector<double>{3.0, 4.0});
  p.set_grad(g);
  q.set_grad(g);
  const Tensor total = optim::clip_grad_norm_({p, q, r}, 1.0);
  CHECK(total.item<double>() == doctest::Approx(std::sqrt(50.0)));
  CHECK(p.grad().to_vector<double>()[0] == doctest::Approx(3 / std::sqrt(50.0)).epsilon(1e-6));
  optim::clip_grad_norm_({p}, 100.0);
  CHECK(p.grad().to_vector<double>()[0] == doctest::Approx(3 / std::sqrt(50.0)).epsilon(1e-6));
  CHECK(optim::clip_grad_norm_({r}, 1.0).item<float>() == 0.0f);
  // The norm has the widest dtype: this one overflows float32.
  Tensor s = full({}, 0.0).set_requires_grad(true);
  s.set_grad(full({}, 3.0));
  r.set_grad(full({1}, 1e100, kFloat64));
  CHECK(optim::clip_grad_norm_({s, r}, 1.0).item<double>() == 1e100);
  CHECK(r.grad().item<double>() == 1.0);
  // A gradient that parameters share in different shapes.
  Tensor column = full({2, 1}, 0.0, kFloat64).set_requires_grad(true);
  p.set_grad(tensor(std::vector<double>{3.0, 4.0}));
  column.set_grad(p.grad().view({2, 1}));
  optim::clip_grad_norm_({p, column}, 1.0);
  CHECK(p.grad().to_vector<double>()[0] == doctest::Approx(3 / std::sqrt(50.0)).epsilon(1e-6));
  // Or transposed; a part of it counts as a distinct one.
  const Tensor m = zeros({2, 3}).set_requires_grad(true), n = zeros({3, 2}).set_requires_grad(true);
  const Tensor row = zeros({3}).set_requires_grad(true);
  m.set_grad(ones({2, 3}));
  n.set_grad(m.grad().t());
  CHECK(optim::distinct_gradients({m, n}).size() == 1);
  row.set_grad(m.grad().select(0, 0));
  CHECK(optim::distinct_gradients({m, row}).size() == 2);
  CHECK_THROWS_AS(optim::clip_grad_norm_({p}, -1.0), Error);
  CHECK_THROWS_AS(optim::clip_grad_norm_({p}, std::nan("")), Error);
  // With an infinite limit only the norm is measured: nothing changes.
  p.set_grad(full({2}, INFINITY, kFloat64));
  CHECK(std::isinf(optim::clip_grad_norm_({p}, INFINITY).item<double>()));
  CHECK(std::isinf(p.grad().to_vector<double>()[1]));
}

TEST_CASE("schedules are closed formulas of the step") {
  Tensor p = parameter({1.0});
  optim::SGD opt({p}, {.lr = 1.0});
  {
    optim::WarmupCosineLR s(opt, 4, 14, 0.1);
    CHECK(opt.lr() == 0.25);
    for (int i = 0; i < 4; ++i) s.step();
    CHECK(opt.lr() == 1.0);
    for (int i = 0; i < 5; ++i) s.step();
    CHECK(opt.lr() == doctest::Approx(0.55));
    const StateDict saved = s.state_dict();
    for (int i = 0; i < 50; ++i) s.step();
    CHECK(opt.lr() == doctest::Approx(0.1));
    s.load_state_dict(saved);
    CHECK(s.steps() == 9);
    CHECK(opt.lr() == doctest::Approx(0.55));
    StateDict last = saved;
    last["step"] = full({}, INT64_MAX, kInt64);
    CHECK_THROWS_WITH_AS(s.load_state_dict(last), doctest::Contains("step 9223372036854775807"),
                         Error);
    CHECK(s.steps() == 9);
  }
  opt.set_lr(1.0);
  {
    // A state whose lr overflows is rejected before anything has changed.
    optim::StepLR steady(opt, 1, 1.0), growing(opt, 1, 10.0);
    for (int i = 0; i < 400; ++i) steady.step();
    CHECK_THROWS_AS(growing.check_state_dict(steady.state_dict()), Error);
    CHECK_THROWS_AS(growing.load_state_dict(steady.state_dict()), Error);
    StateDict large = growing.state_dict();
    large["base_lr"] = full({}, 1e300, kFloat64);
    large["step"] = full({}, 9, kInt64);
    CHECK_THROWS_AS(growing.check_state_dict(large), Error);
    CHECK((growing.steps() == 0 && growing.lr_at(1) == 10.0 && opt.lr() == 1.0));
  }
  optim::StepLR steps(opt, 3, 0.5);
  for (int i = 0; i < 7; ++i) steps.step();
  CHECK(opt.lr() == 0.25);
  opt.set_lr(1.0);
  optim::CosineLR cosine(opt, 10);
  for (int i = 0; i < 10; ++i) cosine.step();
  CHECK(opt.lr() == 0.0);
  CHECK_THROWS_WITH_AS(cosine.load_state_dict(steps.state_dict()),
                       doctest::Contains("unexpected: StepLR"), Error);
  StateDict older = steps.state_dict();  // From before the scheduler's kind was stored.
  older.erase("StepLR");
  CHECK_NOTHROW(steps.load_state_dict(older));
  CHECK_THROWS_AS(optim::CosineLR(opt, 0), Error);
  CHECK_THROWS_AS(optim::WarmupCosineLR(opt, 5, 5), Error);
  CHECK_THROWS_WITH_AS(optim::WarmupCosineLR(opt, -1, 5),
                       doctest::Contains("must not be negative, got -1"), Error);
  CHECK_THROWS_AS(optim::StepLR(opt, 1, -1.0), Error);
}

TEST_CASE("an MLP learns in a few steps with every optimiser") {
  manual_seed(7);
  const Tensor x = randn({64, 8}), y = (x.select(1, 0) > 0.0).to(kInt64);
  const auto train =
      [&](const std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)>& make) {
        models::MLP mlp({.sizes = {8, 16, 2}});
        const auto opt = make(mlp.parameters());
        float loss = 0;
        for (int i = 0; i < 100; ++i) {
          const Tensor l = cross_entropy(mlp(x), y);
          opt->zero_grad();
          l.backward();
          optim::clip_grad_norm_(mlp.parameters(), 5.0);
          opt->step();
          loss = l.item<float>();
        }
        return loss;
      };
  using Parameters = std::vector<Tensor>;
  CHECK(train([](Parameters p) {
          return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
        }) < 0.1f);
  CHECK(train([](Parameters p) {
          return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 0.02});
        }) < 0.1f);
}

TEST_CASE("AdamW decays the selected parameters") {
  const auto matrices = [](const Tensor& p) { return p.dim() >= 2; };
  auto train = [&](const optim::AdamWOptions& o, std::vector<Tensor>& params, StepStats* stats) {
    manual_seed(3);
    models::MLP model({.sizes = {6, 8, 3}});
    optim::AdamW opt(model.parameters(), o);
    auto run = [&](const Tensor& x, const Tensor& y) {
      const Tensor loss = cross_entropy(model(x), y);
      opt.zero_grad();
      loss.backward();
      opt.step();
      return loss.detach();
    };
    auto step = brrr::step(run, StepOptions{.mode = stats ? Mode::Graph : Mode::Eager});
    // A single step: afterwards a parameter depends on the decay of all others.
    const Tensor x = randn({4, 6}), y = tensor(std::vector<int64_t>{0, 1, 2, 1});
    step(x, y);
    params = model.parameters();
    if (!stats) return opt.state_dict();
    step(x, y);
    *stats = step.stats();
    return opt.state_dict();
  };
  std::vector<Tensor> all, none, chosen;
  train({.weight_decay = 0.5}, all, nullptr);
  train({.weight_decay = 0}, none, nullptr);
  const StateDict state = train({.weight_decay = 0.5, .decay = matrices}, chosen, nullptr);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Tensor& want = (chosen[i].dim() >= 2 ? all : none)[i];
    CHECK(chosen[i].to_vector<float>() == want.to_vector<float>());
  }
  CHECK(all[1].to_vector<float>() != none[1].to_vector<float>());

  // As many kernels as without groups, and the same state under the same names.
  StepStats plain, grouped;
  std::vector<Tensor> p, q;
  const StateDict before = train({.weight_decay = 0.5}, p, &plain);
  train({.weight_decay = 0.5, .decay = matrices}, q, &grouped);
  CHECK(plain.replays == 1);
  CHECK(grouped.kernels_per_replay == plain.kernels_per_replay);
  CHECK(grouped.fused_kernels == plain.fused_kernels);
  optim::AdamW opt(chosen, {.decay = matrices});
  opt.load_state_dict(before);
  CHECK(opt.weight_decay() == 0.5);
  CHECK(state.size() == before.size());
}

TEST_CASE("optimisers: without a penalty an infinity stays one where its gradient is 0") {
  const auto after_two = [](auto make) {
    Tensor b = tensor({-INFINITY, 0.0f, 0.0f}).set_requires_grad(true);
    auto opt = make(std::vector<Tensor>{b});
    for (int k = 0; k < 2; ++k) {
      opt.zero_grad();
      cross_entropy(zeros({1, 3}) + b, tensor({1})).backward();
      opt.step();
    }
    return b.detach().template to_vector<float>();
  };
  using Parameters = std::vector<Tensor>;
  const auto check = [&](auto make) {
    const std::vector<float> b = after_two(make);
    CHECK(b[0] == -INFINITY);
    CHECK(b[1] > 0);
    CHECK(b[2] < 0);
  };
  check([](Parameters p) { return optim::SGD(std::move(p), {.lr = 0.1}); });
  check([](Parameters p) { return optim::SGD(std::move(p), {.lr = 0.1, .momentum = 0.9}); });
  check([](Parameters p) {
    return optim::SGD(std::move(p), {.lr = 0.1, .momentum = 0.9, .nesterov = true});
  });
  check([](Parameters p) { return optim::Adam(std::move(p), {.lr = 0.1}); });
  check([](Parameters p) { return optim::AdamW(std::move(p), {.lr = 0.1, .weight_decay = 0}); });
}

template <class Opt> static auto step_of_gradients(const Tensor& p, Opt& opt, Mode mode) {
  return brrr::step(
      [p, &opt](const Tensor& x) {
        opt.zero_grad();
        (p * x).sum().backward();
        opt.step();
      },
      mode);
}

TEST_CASE("optimisers: moments decay to zero instead of staying denormal") {
  using Parameters = std::vector<Tensor>;
  const auto check = [](Mode mode, const std::string& moment, auto make) {
    const Tensor p = parameter({1, -2, 0, 0.5}, kFloat32);
    auto opt = make(Parameters{p});
    auto step = step_of_gradients(p, opt, mode);
    const auto now = [&] { return opt.state_dict().at("0." + moment).template to_vector<float>(); };
    // The last one never has a gradient, the third a small one in every step.
    step(tensor({1.0f, -3.0f, 1e-15f, 0.0f}));
    CHECK(now()[1] != 0);
    for (int k = 0; k < 2000; ++k) step(tensor({0.0f, 0.0f, 1e-15f, 0.0f}));
    CHECK(now()[0] == 0);
    CHECK(now()[1] == 0);
    CHECK(now()[2] > 1e-32f);
    CHECK(now()[3] == 0);
    step(tensor({NAN, INFINITY, 0.0f, 0.0f}));
    CHECK(std::isnan(now()[0]));
    CHECK(!std::isfinite(now()[1]));
  };
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    for (const std::string moment : {"exp_avg", "exp_avg_sq"}) {
      check(mode, moment, [](Parameters p) {
        return optim::AdamW(std::move(p), {.lr = 0.1, .betas = {0.9, 0.95}});
      });
      check(mode, moment, [](Parameters p) {
        return optim::Adam(std::move(p), {.lr = 0.1, .betas = {0.9, 0.95}});
      });
    }
    for (const bool nesterov : {false, true}) {
      check(mode, "momentum_buffer", [&](Parameters p) {
        return optim::SGD(std::move(p), {.lr = 0.1, .momentum = 0.9, .nesterov = nesterov});
      });
    }
  }
}

TEST_CASE("optimisers: Adam's step is lr where betas or eps are 0 and gradients small") {
  const auto after = [](Mode mode, const optim::AdamOptions& o, std::vector<float> gradients) {
    const Tensor p = parameter({1}, kFloat32);
    optim::Adam opt({p}, o);
    auto step = step_of_gradients(p, opt, mode);
    for (float g : gradients) step(tensor({g}));
    return p.item<double>();
  };
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    // With beta1 = 0 the mean equals the gradient, even if that is tiny next to the previous one.
    CHECK(after(mode, {.lr = 0.1, .betas = {0, 0}, .eps = 0}, {1000, 1e-5f, -1e-5f, 1e-5f}) ==
          doctest::Approx(0.8));
    // The second moment is denormal, and the only divisor of the step.
    for (const double eps : {0.0, 1e-30}) {
      CHECK(after(mode, {.lr = 0.1, .eps = eps}, {1e-18f, 1e-18f}) ==
            doctest::Approx(0.8).epsilon(1e-3));
    }
  }
}
