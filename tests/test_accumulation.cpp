// Gradient accumulation: k micro-batches inside one step, and steps that alternate.
#include <limits>
#include <optional>

#include "tests/pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// A model with dropout, whose micro-steps add up gradients and whose updates are clipped.
struct Accumulator {
  models::MLP model{small_mlp(0.1)};
  optim::AdamW opt{model.parameters(),
                   {.lr = 1e-2, .decay = [](const Tensor& p) { return p.dim() >= 2; }}};
  optim::CosineLR schedule{opt, 40};
  optim::GradScaler scaler{{.scale = 1024, .interval = 4}};

  Tensor micro(const Tensor& x, const Tensor& y, double k) const {
    const Tensor loss = cross_entropy(model_of(x), y);
    (loss / k).backward();
    return loss.detach();
  }
  Tensor model_of(const Tensor& x) const { return const_cast<models::MLP&>(model)(x); }
  void update(bool set_to_none = true) {
    optim::clip_grad_norm_(model.parameters(), 0.5);
    opt.step();
    opt.zero_grad(set_to_none);
  }
  void log(Trace& t, const Tensor& loss) const {
    t.add(loss);
    t.add_leaves(model.parameters());
    t.add_state(opt.state_dict());
  }
};

}  // namespace

TEST_CASE("pitfall A20: k micro-batches in one step are one recording") {
  constexpr int64_t k = 4;
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Accumulator a;
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          Tensor total = zeros({});
          for (int64_t i = 0; i < k; ++i)
            total = total + a.micro(x.select(0, i), y.select(0, i), k);
          a.update();
          return total / static_cast<double>(k);
        },
        options);
    for (int i = 0; i < 20; ++i) {
      a.log(t, step(randn({k, 4, 6}), randint(0, 3, {k, 4})));
      a.schedule.step();
    }
    if (options.mode == Mode::Eager) return;
    CHECK(step.stats().recordings == 1);
    CHECK(step.stats().replays >= 19);
    CHECK(step.stats().fallbacks == 0);
  });
  // The same with the batches as arguments of their own, mixed precision and loss scaling.
  same_in_all_modes([](const StepOptions& options, Trace& t) {
    Accumulator a;
    auto step = brrr::step(
        [&](const Tensor& x0, const Tensor& y0, const Tensor& x1, const Tensor& y1) {
          for (const auto& [x, y] : {std::pair(x0, y0), std::pair(x1, y1)}) {
            std::optional<AutocastGuard> guard(kBFloat16);
            const Tensor loss = cross_entropy(a.model_of(x), y);
            guard.reset();
            a.scaler.scale(loss / 2.0).backward();
          }
          const Tensor skip = a.scaler.unscale_(a.model.parameters());
          const Tensor norm = optim::clip_grad_norm_(a.model.parameters(), 0.5);
          a.opt.step(skip);
          a.scaler.update(skip);
          a.opt.zero_grad();
          return norm;
        },
        options);
    for (int i = 0; i < 20; ++i) {
      const Tensor x0 = randn({4, 6}), x1 = randn({4, 6});
      if (i == 7) x1.select(0, 0).fill_(std::numeric_limits<double>::infinity());
      a.log(t, step(x0, randint(0, 3, {4}), x1, randint(0, 3, {4})));
      t.add_state(a.scaler.state_dict());
      a.schedule.step();
    }
    if (options.mode == Mode::Graph) CHECK(step.stats().recordings == 1);
  });
}

TEST_CASE("pitfall A20: accumulation inside a step equals one large batch, within rounding") {
  manual_seed(5);
  Accumulator a, b;
  b.model.load_state_dict(a.model.state_dict());
  for (Accumulator* m : {&a, &b}) m->model.eval();
  const Tensor x = randn({4, 8, 6}), y = randint(0, 3, {4, 8});
  for (int64_t i = 0; i < 4; ++i) a.micro(x.select(0, i), y.select(0, i), 4);
  b.micro(x.reshape({32, 6}), y.reshape({32}), 1);
  const auto p = a.model.parameters(), q = b.model.parameters();
  for (size_t i = 0; i < p.size(); ++i) {
    CHECK((p[i].grad() - q[i].grad()).abs().max().item<float>() < 1e-6f);
  }
}

TEST_CASE("pitfall A20: micro-steps that alternate with updates make few recordings") {
  struct Way {
    int k;
    bool set_to_none;
    uint64_t recordings;
  };
  // With set_to_none the first micro-step assigns gradients, later ones add: one recording more.
  for (const Way way : {Way{2, true, 2}, Way{4, true, 3}, Way{2, false, 2}, Way{4, false, 2}}) {
    same_in_all_modes([&](const StepOptions& options, Trace& t) {
      Accumulator a;
      if (!way.set_to_none) a.opt.zero_grad(false);
      int calls = 0;
      auto step = brrr::step(
          [&](const Tensor& x, const Tensor& y) {
            const Tensor loss = a.micro(x, y, way.k);
            if (++calls % way.k == 0) a.update(way.set_to_none);
            return loss;
          },
          options);
      for (int i = 0; i < 20 * way.k; ++i) {
        a.log(t, step(randn({4, 6}), randint(0, 3, {4})));
        if (calls % way.k == 0) a.schedule.step();
      }
      CHECK(calls == 20 * way.k);
      if (options.mode == Mode::Eager) return;
      CHECK(step.stats().recordings == way.recordings);
      CHECK(step.stats().fallbacks == 0);
    });
  }
}

TEST_CASE("backward: of several outputs, weighted, again, and into gradients with history") {
  const Tensor w = tensor({1.0, 2.0, 3.0}).set_requires_grad();
  const auto values = [](const Tensor& t) { return t.to_vector<float>(); };
  const Tensor a = w.square(), b = (w * 2.0).sum();
  backward({a, b}, {tensor({1.0, 0.0, 10.0}), {}}, {.retain_graph = true});
  CHECK(values(w.grad()) == std::vector<float>{4, 2, 62});
  backward({b});
  CHECK(values(w.grad()) == std::vector<float>{6, 4, 64});
  CHECK(error_of([&] { backward({b}); }).starts_with("backward: "));
  CHECK(error_of([&] { backward({w.square()}); }).find("more than one element") !=
        std::string::npos);
  w.set_grad({});
  for (int k = 0; k < 2; ++k) backward({w.pow(3.0).sum()}, {}, {.create_graph = true});
  CHECK(values(w.grad()) == std::vector<float>{6, 24, 54});
  CHECK(values(grad({w.grad().sum()}, {w})[0]) == std::vector<float>{12, 24, 36});
}

TEST_CASE("backward: a leaf whose requires_grad was cleared before it gets no gradient") {
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    const Tensor a = ones({3}).set_requires_grad(), b = full({3}, 2.0).set_requires_grad();
    auto run = step(
        [&](const Tensor& x) {
          a.set_requires_grad();
          const Tensor loss = (a * b * x).sum();
          a.set_requires_grad(false);
          b.set_grad({});
          loss.backward();
          return loss.detach();
        },
        mode);
    for (int k = 0; k < 3; ++k) {
      CHECK(run(full({3}, k + 1.0)).item<float>() == 6 * (k + 1));
      CHECK_FALSE(a.grad().defined());
      CHECK(same_bits(b.grad(), full({3}, k + 1.0)));
    }
  }
  CHECK(error_of([] { grad({ones({}).set_requires_grad() * 1.0}, {Tensor()}); }) ==
        "grad: input 0 is undefined");
}

TEST_CASE("zero_grad(false) zeroes gradients, and creates missing ones") {
  models::MLP model(small_mlp());
  optim::SGD opt(model.parameters(), {});
  model.parameters()[0].set_requires_grad(false);
  const Tensor held = ones({8});
  model.parameters()[1].set_grad(held);
  opt.zero_grad(false);
  CHECK_FALSE(model.parameters()[0].grad().defined());
  CHECK(same_bits(held, zeros({8})));
  CHECK(same_bits(model.parameters()[2].grad(), zeros({3, 8})));
  opt.zero_grad();
  CHECK_FALSE(model.parameters()[1].grad().defined());
}

TEST_CASE("an optimiser made before the model changes its dtype says so") {
  models::Linear layer(3, 2);
  optim::AdamW adam(layer.parameters(), {});
  optim::SGD plain(layer.parameters(), {.lr = 0.5});
  layer.to(kFloat64);
  layer(randn({4, 3}).to(kFloat64)).sum().backward();
  CHECK(error_of([&] { adam.step(); }) ==
        "AdamW: parameter 0 is float64, its state is of float32; make the optimiser after "
        "model.to(dtype)");
  plain.step();  // It has no state.
}

TEST_CASE("an optimiser that refuses one parameter updates none") {
  models::Linear first(3, 2), second(2, 2);
  optim::AdamW adam({first.weight, second.weight}, {});
  second.to(kFloat64);
  const Tensor before = first.weight.detach().clone();
  second(first(randn({4, 3})).to(kFloat64)).sum().backward();
  CHECK(error_of([&] { adam.step(); }).find("parameter 1 is float64") != std::string::npos);
  CHECK(same_bits(first.weight.detach(), before));
}

TEST_CASE("backward: gradients added before it met a released tape are the same in both modes") {
  const auto gradient = [](Mode mode) {
    const Tensor w = full({3}, 2.0).set_requires_grad();
    Tensor y;  // Made before the step, which keeps the tape alive to its end.
    auto step = brrr::step(
        [&] {
          y.sum().backward();
          const Tensor loss = (w * 3.0).sum() + y.sum();
          CHECK_THROWS_AS(loss.backward(), Error);  // y's tape is released; w's is not.
          return loss.detach();
        },
        mode);
    for (int call = 0; call < 3; ++call) {
      y = exp(w * 0.5);
      step();
    }
    return w.grad();
  };
  const Tensor eager = gradient(Mode::Eager), graph = gradient(Mode::Graph);
  CHECK(same_bits(eager, graph));
  CHECK(eager.version() == graph.version());
}

TEST_CASE("zero_grad(false): the zeros have no history, also after create_graph") {
  Tensor x = tensor({2.0f}).set_requires_grad(true);
  const optim::SGD opt({x}, {.lr = 0.1});
  backward({(x * x * x).sum()}, {}, {.create_graph = true});
  opt.zero_grad(false);
  CHECK_FALSE(x.grad().requires_grad());
  backward({(x * x).sum()}, {}, {.create_graph = true});
  CHECK(grad({x.grad().sum()}, {x})[0].item<float>() == 2);
}

TEST_CASE("grad: nodes that lead to none of the inputs are neither computed nor released") {
  Tensor w = ones({2, 2}).set_requires_grad(true), a = ones({2}).set_requires_grad(true);
  const Tensor b = a.detach().clone().set_requires_grad(true);
  const auto fn = [&] {
    w.set_grad({});
    const Tensor trunk = relu(matmul(ones({1, 2}), w)).exp();
    const Tensor one = (trunk * a).sum(), other = (trunk * b).sum();
    const Tensor g = grad({one}, {a})[0];
    other.backward();  // The trunk's tape has not been released.
    return std::vector<Tensor>{g, w.grad() * 1.0};
  };
  const std::vector<Tensor> eager = fn();
  CHECK(same_bits(eager[0], ones({2}) * exp(full({2}, 2.0))));
  auto step = brrr::step(fn, {.require_graph = true, .build_at_first_call = true});
  for (int call = 0; call < 3; ++call) CHECK(same_bits(step(), eager));
  // An in-place write matters only to gradients that need the overwritten value.
  Tensor h = (w * w).exp();
  const Tensor loss = (h.sin() * a).sum();
  const Tensor sine = h.sin().detach();
  {
    const NoGradGuard guard;
    h.zero_();
  }
  CHECK(same_bits(grad({loss}, {a})[0], sine.sum({0})));
  // An intermediate input; an intermediate one together with the leaf behind it; a released tape.
  const Tensor middle = (a * 3.0).exp(), end = (middle * middle).sum();
  CHECK(same_bits(grad({end}, {middle})[0], middle + middle));
  const Tensor again = (a * 3.0).exp(), last = (again * again).sum();
  const std::vector<Tensor> both = grad({last}, {a, again});
  CHECK(same_bits(both[0], (again + again) * again * 3.0));
  CHECK(contains(error_of([&] { grad({last}, {a}); }), "retain_graph"));
  // The tape that produced the input may be released: grad() does not go behind the input.
  const Tensor made = (a * 3.0).exp();
  made.sum().backward();
  CHECK(same_bits(grad({(made * made).sum()}, {made})[0], made + made));
  // One result of an op with several.
  const std::vector<Tensor> parts = unbind(a * 3.0);
  CHECK(grad({parts[0] * 2.0 + parts[1] * 5.0}, {parts[0]})[0].item<float>() == 2);
}

TEST_CASE("backward: gradients of leaves share no memory, and are dense") {
  const Tensor a = ones({3}).set_requires_grad(true), b = ones({3}).set_requires_grad(true);
  const Tensor seed = ones({3});
  (a + b).backward(seed);
  a.grad().zero_();
  CHECK((same_bits(b.grad(), seed) && same_bits(seed, ones({3}))));
  const Tensor by_length = randn({2, 5, 3, 4}).transpose(1, 2).set_requires_grad(true);
  scaled_dot_product_attention(by_length, by_length.detach(), by_length.detach()).sum().backward();
  CHECK(by_length.grad().is_contiguous());
}
