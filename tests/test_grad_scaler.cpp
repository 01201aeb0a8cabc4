// Loss scaling: adaptive device state, and steps that are skipped without reading data on the host.
#include <cmath>

#include "tests/pitfalls.h"
#include "tests/temp_cache.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// A scaled training step of any optimiser, in float32 or float16.
template <class Opt, class Options> struct Scaled {
  models::MLP model{small_mlp(0.1)};
  Opt opt;
  optim::GradScaler scaler;
  DType dtype = kFloat32;
  explicit Scaled(const Options& o, const optim::GradScalerOptions& s = {})
      : opt(model.parameters(), o), scaler(s) {}

  Tensor run(const Tensor& x, const Tensor& y) {
    opt.zero_grad();
    Tensor loss;
    {
      AutocastGuard guard(dtype);
      loss = cross_entropy(model(x), y);
    }
    scaler.scale(loss).backward();
    const Tensor skip = scaler.unscale_(model.parameters());
    optim::clip_grad_norm_(model.parameters(), 1.0);
    opt.step(skip);
    scaler.update(skip);
    return loss.detach();
  }
  Trace state() const {
    Trace t;
    t.add(model.parameters());
    t.add_state(opt.state_dict());
    return t;
  }
  float scale() const { return scaler.value().template item<float>(); }
};

// Inf at step 5 of 12; the scale grows after every third good step in a row.
template <class Opt, class Options> void check_skip(const Options& o, bool frozen = false) {
  const double growth[] = {8, 8, 16, 16, 16, 8, 8, 8, 16, 16, 16, 32};
  same_in_all_modes([&](const StepOptions& options, Trace& trace) {
    Scaled<Opt, Options> s(o, {.scale = 8, .interval = 3});
    auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return s.run(x, y); }, options);
    for (int i = 0; i < 12; ++i) {
      const Tensor x = randn({4, 6}), y = randint(0, 3, {4});
      if (i == 5) x.select(0, 1).fill_(kInf);
      const Trace before = s.state();
      trace.add(step(x, y));
      trace.add(s.model.parameters());
      trace.add_state(s.opt.state_dict());
      trace.add_state(s.scaler.state_dict());
      CHECK((first_difference(before, s.state()) == -1) == (i == 5));
      CHECK(s.scale() == growth[i]);
      if (frozen && i == 1 && options.mode == Mode::Graph) step.freeze();
    }
    if (options.mode == Mode::Eager) return;
    CHECK(step.stats().recordings == 1);
    CHECK(step.stats().fallbacks == 0);
  });
}

}  // namespace

TEST_CASE("pitfall A15: a step with infinite gradients changes nothing but the scale") {
  using optim::Adam, optim::AdamW, optim::SGD;
  check_skip<SGD>(optim::SGDOptions{.lr = 0.1, .weight_decay = 0.1});
  check_skip<SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  check_skip<SGD>(optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
  check_skip<Adam>(optim::AdamOptions{.lr = 1e-2, .weight_decay = 0.1});
  check_skip<AdamW>(optim::AdamWOptions{.lr = 1e-2});
  check_skip<AdamW>(optim::AdamWOptions{.lr = 1e-2}, true);
}

TEST_CASE("pitfall A15: NaN gradients are skipped too, from the very first step") {
  same_in_all_modes([](const StepOptions& options, Trace& trace) {
    Scaled<optim::AdamW, optim::AdamWOptions> s({.lr = 1e-2}, {.scale = 8});
    auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return s.run(x, y); }, options);
    const Trace before = s.state();
    const Tensor nan = full({4, 6}, std::nan("")), y = labels();
    for (int i = 0; i < 3; ++i) step(nan, y);
    CHECK(first_difference(before, s.state()) == -1);
    CHECK(s.scale() == 1);
    // The first step that is not skipped is Adam's first: the powers have not moved before.
    trace.add(step(randn({4, 6}), y));
    trace.add_state(s.opt.state_dict());
    CHECK(s.opt.state_dict().at("0.beta1_power").item<double>() == 0.9);
  });
}

TEST_CASE("grad scaler: scaling by a power of two changes no bit") {
  Trace traces[2];
  for (bool scaled : {false, true}) {
    manual_seed(3);
    Scaled<optim::AdamW, optim::AdamWOptions> s({.lr = 1e-2}, {.scale = 1024, .interval = 2});
    for (int i = 0; i < 8; ++i) {
      const Tensor x = randn({4, 6}), y = randint(0, 3, {4});
      if (scaled) {
        traces[1].add(s.run(x, y));
      } else {
        s.opt.zero_grad();
        const Tensor loss = cross_entropy(s.model(x), y);
        loss.backward();
        optim::clip_grad_norm_(s.model.parameters(), 1.0);
        s.opt.step();
        traces[0].add(loss);
      }
      traces[scaled].add(s.model.parameters());
    }
  }
  CHECK(first_difference(traces[0], traces[1]) == -1);
}

TEST_CASE("grad scaler: gradients that float16 would lose are kept") {
  manual_seed(4);
  const Tensor w = randn({3, 5}).set_requires_grad(true), x = randn({2, 5});
  auto gradient = [&](double scale) {
    optim::GradScaler scaler({.scale = scale});
    w.set_grad({});
    AutocastGuard guard(kFloat16);
    // 2^-26 is below half of float16's smallest number.
    scaler.scale(linear(x, w).to(kFloat32).sum() * 0x1p-26).backward();
    CHECK_FALSE(scaler.unscale_({w}).item<bool>());
    return w.grad();
  };
  CHECK(gradient(1).abs().max().item<float>() == 0);
  const Tensor want = x.to(kFloat16).to(kFloat32).sum({0}) * 0x1p-26;
  const Tensor got = gradient(65536).select(0, 0);
  CHECK((got - want).abs().max().item<float>() <= 0x1p-10f * want.abs().max().item<float>());
  // Both modes in float16, with an overflow of the forward pass itself.
  same_in_all_modes([](const StepOptions& options, Trace& trace) {
    Scaled<optim::SGD, optim::SGDOptions> s({.lr = 0.1, .momentum = 0.9});
    s.dtype = kFloat16;
    auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return s.run(x, y); }, options);
    for (int i = 0; i < 8; ++i) {
      trace.add(step(randn({4, 6}) * (i == 3 ? 1e6 : 1.0), randint(0, 3, {4})));
      trace.add(s.model.parameters());
      trace.add_state(s.scaler.state_dict());
    }
    if (options.mode == Mode::Graph) CHECK(step.stats().recordings == 1);
  });
}

TEST_CASE("grad scaler: shared gradients are divided once, missing ones are skipped") {
  const Tensor p = ones({2}).set_requires_grad(true), q = ones({2}).set_requires_grad(true);
  const Tensor g = full({2}, 8.0);
  p.set_grad(g);
  q.set_grad(g);
  optim::GradScaler scaler({.scale = 4});
  CHECK_FALSE(scaler.unscale_({p, q}).item<bool>());
  CHECK(p.grad().to_vector<float>() == std::vector<float>{2, 2});
  const Tensor lonely = ones({2}).set_requires_grad(true);
  CHECK_FALSE(scaler.unscale_({lonely}).item<bool>());
  CHECK(scaler.scale(full({}, 3.0, kFloat16)).dtype() == kFloat32);
  CHECK(scaler.scale(full({}, 3.0, kFloat64)).dtype() == kFloat64);
}

TEST_CASE("grad scaler: gradients are divided once a step") {
  const Tensor p = ones({2}).set_requires_grad(true), q = ones({2}).set_requires_grad(true);
  optim::GradScaler scaler({.scale = 4});
  bool throws = true;
  auto step = brrr::step([&](const Tensor& g) {
    p.set_grad(g * 1.0);
    scaler.unscale_({p});
    if (throws) throw std::runtime_error("thrown out");
  });
  CHECK_THROWS_AS(step(full({2}, 8.0)), std::runtime_error);
  throws = false;
  step(full({2}, 8.0));  // The step that threw does not count.
  CHECK(contains(error_of([&] { step(full({2}, 8.0)); }), "since the last update()"));
  CHECK(contains(error_of([&] { scaler.unscale_({q, p}); }), "since the last update()"));
  CHECK(p.grad().to_vector<float>() == std::vector<float>{2, 2});
  scaler.update(scaler.unscale_({q}));  // Of another optimiser.
  scaler.unscale_({q, p});
  CHECK(p.grad().to_vector<float>() == std::vector<float>{0.5, 0.5});
}

TEST_CASE("pitfall A25: a frozen step divides no gradients that were divided before it") {
  Scaled<optim::SGD, optim::SGDOptions> s({.lr = 0.1}, {.scale = 8});
  const Tensor x = randn({4, 6}), y = randint(0, 3, {4});
  auto step = brrr::step([&] { return s.run(x, y); }, kEarly);
  for (int call = 0; call < 3; ++call) step();
  step.freeze();
  step();
  s.scaler.unscale_(s.model.parameters());
  CHECK(contains(error_of([&] { step(); }), "was divided since the last update()"));
}

TEST_CASE("grad scaler: the scale stays usable, whatever happens") {
  const Tensor yes = full({}, true), no = full({}, false);
  optim::GradScaler low({.scale = 0x1p-120, .interval = 1}),
      high({.scale = 0x1p120, .interval = 1});
  for (int i = 0; i < 20; ++i) {
    low.update(yes);
    high.update(no);
  }
  CHECK(low.value().item<double>() == 0x1p-126);
  CHECK(high.value().item<double>() == 0x1p126);
  low.update(no);
  CHECK(low.value().item<double>() == 0x1p-125);
}

TEST_CASE("grad scaler: state, checkpoints, errors") {
  const bench::TemporaryFolder folder;
  const std::string file = folder.file("run.safetensors");
  optim::GradScaler a({.scale = 4, .interval = 5}), b;
  for (int i = 0; i < 7; ++i) a.update(full({}, false));
  TrainingState save{.scaler = &a};
  save_checkpoint(file, save);
  TrainingState load{.scaler = &b};
  load_checkpoint(file, load);
  CHECK(b.value().item<float>() == 8);
  CHECK(b.state_dict().at("good_steps").item<int64_t>() == 2);
  StateDict bad = a.state_dict();
  bad["scale"] = full({}, 0.0);
  CHECK(contains(error_of([&] { b.load_state_dict(bad); }), "scale of 0"));
  bad = a.state_dict();
  bad["good_steps"] = full({}, INT64_MAX, kInt64);
  CHECK(contains(error_of([&] { b.load_state_dict(bad); }), "good steps"));
  CHECK(b.value().item<float>() == 8);

  CHECK(contains(error_of([] { optim::GradScaler({.scale = 0}); }), "scale"));
  CHECK(contains(error_of([] { optim::GradScaler({.growth = 0.5}); }), "growth"));
  CHECK(contains(error_of([] { optim::GradScaler({.backoff = 1}); }), "backoff"));
  CHECK(contains(error_of([] { optim::GradScaler({.interval = 0}); }), "interval"));
  CHECK(contains(error_of([&] { b.update(ones({2})); }), "unscale_"));
  CHECK(contains(error_of([&] { b.scale(Tensor()); }), "loss"));
  const Tensor p = ones({2}).set_requires_grad(true);
  optim::SGD opt({p}, {});
  CHECK(contains(error_of([&] { opt.step(ones({})); }), "0-d bool"));
}
