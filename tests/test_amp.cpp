// Mixed precision: which operands an AutocastGuard rounds and which it leaves alone, in both modes.
#include <cmath>
#include <optional>
#include <thread>

#include "core/op.h"
#include "tests/pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

const DType kHalves[] = {kBFloat16, kFloat16};

Tensor leaf_of(const IntList& sizes) { return randn(sizes).set_requires_grad(true); }

/// A training step whose forward runs under a guard of `dtype`.
struct Mixed {
  models::MLP model{small_mlp(0.2)};
  optim::AdamW opt{model.parameters(), {.lr = 1e-2}};
  DType dtype = kBFloat16;

  Tensor run(const Tensor& x, const Tensor& y) {
    opt.zero_grad();
    Tensor loss;
    {
      AutocastGuard guard(dtype);
      loss = cross_entropy(model(x), y);
    }
    loss.backward();
    optim::clip_grad_norm_(model.parameters(), 1.0);
    opt.step();
    return loss.detach();
  }
  void log(Trace& t, const Tensor& loss) {
    t.add(loss);
    t.add_leaves(model.parameters());
    t.add_state(opt.state_dict());
  }
};

}  // namespace

TEST_CASE("autocast: products take rounded operands and give the guard's dtype") {
  manual_seed(1);
  const Tensor a = randn({2, 5, 7}), b = randn({7, 3}), w = randn({4, 7}), bias = randn({4});
  for (DType t : kHalves) {
    AutocastGuard guard(t);
    CHECK(autocast_dtype() == t);
    CHECK(same_bits(matmul(a, b), matmul(a.to(t), b.to(t))));
    CHECK(matmul(a, b).dtype() == t);
    CHECK(same_bits(linear(a, w, bias), linear(a.to(t), w.to(t), bias.to(t))));
    CHECK(same_bits(linear(a, w), linear(a.to(t), w.to(t))));
    // Mixed operands are cast to the guard's dtype; a sum with float32 is float32 again.
    CHECK(same_bits(matmul(a.to(kBFloat16), b), matmul(a.to(kBFloat16).to(t), b.to(t))));
    CHECK((linear(a, w) + bias).dtype() == kFloat32);
    // Neither float64 nor integers are touched.
    CHECK(matmul(a.to(kFloat64), b.to(kFloat64)).dtype() == kFloat64);
    CHECK(matmul(ones({2, 2}, kInt64), ones({2, 2}, kInt64)).dtype() == kInt64);
  }
  CHECK(matmul(a, b).dtype() == kFloat32);
}

TEST_CASE("autocast: a product is within its operands' roundings of float32") {
  manual_seed(2);
  const Tensor a = randn({33, 65}), b = randn({65, 17});
  const auto want = matmul(a, b).to_vector<double>();
  const auto sizes = matmul(a.abs(), b.abs()).to_vector<double>();
  for (DType t : kHalves) {
    // One rounding of each operand, one of the result; float32's own roundings are far smaller.
    const double u = t == kBFloat16 ? 0x1p-8 : 0x1p-11;
    AutocastGuard guard(t);
    const auto got = matmul(a, b).to_vector<double>();
    for (size_t i = 0; i < got.size(); ++i) {
      CHECK(std::fabs(got[i] - want[i]) <= u * (2.1 * sizes[i] + std::fabs(want[i])));
    }
  }
}

TEST_CASE("autocast: guards nest, can be switched off, and belong to a thread") {
  const Tensor a = ones({2, 2});
  {
    AutocastGuard guard(kBFloat16);
    {
      AutocastGuard off(kFloat32);
      CHECK(matmul(a, a).dtype() == kFloat32);
      AutocastGuard half(kFloat16);
      CHECK(matmul(a, a).dtype() == kFloat16);
    }
    CHECK(matmul(a, a).dtype() == kBFloat16);
    std::optional<DType> elsewhere;
    std::thread([&] { elsewhere = matmul(a, a).dtype(); }).join();
    CHECK(elsewhere == kFloat32);
    CHECK(contains(error_of([] { AutocastGuard bad(kInt64); }), "kBFloat16"));
    CHECK(autocast_dtype() == kBFloat16);
  }
  CHECK(autocast_dtype() == kFloat32);
}

TEST_CASE("autocast: norms, softmax, losses and reductions give float32") {
  manual_seed(3);
  const Tensor x = randn({4, 6}), ids = randint(0, 6, {4}), target = rand({4, 6});
  for (DType t : kHalves) {
    const Tensor h = x.to(t), wide = h.to(kFloat32);
    AutocastGuard guard(t);
    CHECK(same_bits(softmax(h, -1), softmax(wide, -1)));
    CHECK(same_bits(log_softmax(h, 0), log_softmax(wide, 0)));
    CHECK(same_bits(layer_norm(h, {6}), layer_norm(wide, {6})));
    CHECK(same_bits(rms_norm(h, {6}), rms_norm(wide, {6})));
    CHECK(same_bits(cross_entropy(h, ids), cross_entropy(wide, ids)));
    for (const Reduction r : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
      CHECK(same_bits(cross_entropy(h, ids, {.reduction = r}),
                      cross_entropy(wide, ids, {.reduction = r})));
      for (const auto& loss : {bce_with_logits, mse_loss}) {
        CHECK(same_bits(loss(h, target, r), loss(wide, target, r)));
        CHECK(same_bits(loss(h, target.to(t), r), loss(wide, target.to(t).to(kFloat32), r)));
        CHECK(same_bits(loss(h, ids.view({4, 1}).expand({4, 6}) > 2, r),
                        loss(wide, ids.view({4, 1}).expand({4, 6}) > 2, r)));
      }
    }
    CHECK(same_bits(h.sum(), wide.sum()));
    CHECK(same_bits(h.mean({1}), wide.mean({1})));
    CHECK(same_bits(h.norm(), wide.norm()));
    for (const int64_t d : {0, 1}) {
      CHECK(same_bits(h.var(d), wide.var(d)));
      CHECK(same_bits(h.logsumexp(d), wide.logsumexp(d)));
    }
    // Pointwise ops follow their operands.
    CHECK(gelu(h).dtype() == t);
  }
  // Set by the row: reductions widen, and composites that do not round; no other kind does.
  for (const OpDef* op : registry()) {
    const bool wide = op->kind == OpKind::Reduction ||
                      (op->kind == OpKind::Composite && op->autocast != Autocast::Round);
    CHECK_MESSAGE((op->autocast == Autocast::Widen) == wide, std::string(op->name));
  }
}

TEST_CASE("autocast: gradients are those of the casts, in float32, inside the guard or outside") {
  manual_seed(4);
  const Tensor x = randn({5, 6}), w = leaf_of({4, 6}), b = leaf_of({4}), v = leaf_of({4, 3});
  auto forward = [&](DType t) {
    auto cast = [&](const Tensor& p) { return p.to(t); };
    const Tensor h = gelu(linear(cast(x), cast(w), cast(b)));
    return matmul(h, cast(v)).to(kFloat32).square().sum();
  };
  for (DType t : kHalves) {
    const auto want = grad({forward(t)}, {w, b, v});
    for (bool inside : {false, true}) {
      for (const Tensor& p : {w, b, v}) p.set_grad({});
      std::optional<AutocastGuard> guard(t);
      // The square of a 16-bit tensor would be 16-bit too: widen first.
      const Tensor loss = matmul(gelu(linear(x, w, b)), v).to(kFloat32).square().sum();
      if (!inside) guard.reset();
      loss.backward();
      CHECK(same_bits(w.grad(), want[0]));
      CHECK(same_bits(b.grad(), want[1]));
      CHECK(same_bits(v.grad(), want[2]));
      CHECK(w.grad().dtype() == kFloat32);
    }
  }
  // Second derivatives go through the casts as well.
  AutocastGuard guard(kBFloat16);
  const Tensor y = matmul(w.t(), v).to(kFloat32).sum();
  const auto first = grad({y.square()}, {w}, {.create_graph = true});
  CHECK(grad({first[0].sum()}, {v})[0].dtype() == kFloat32);
}

TEST_CASE("autocast: float64 passes gradcheck inside a guard") {
  manual_seed(6);
  AutocastGuard guard(kBFloat16);
  const auto fn = [](const std::vector<Tensor>& in) {
    return layer_norm(linear(in[0], in[1]).matmul(in[2]), {2}).square().mean({0});
  };
  const std::vector<Tensor> in = {randn({3, 4}).to(kFloat64), randn({5, 4}).to(kFloat64),
                                  randn({5, 2}).to(kFloat64)};
  const auto r = gradcheck(fn, in, {.second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
}

TEST_CASE("autocast: gradients are close to float32's") {
  manual_seed(5);
  models::MLP model(small_mlp());
  const Tensor x = randn({16, 6}), y = randint(0, 3, {16});
  auto gradients = [&](DType t) {
    AutocastGuard guard(t);
    return grad({cross_entropy(model(x), y)}, model.parameters());
  };
  const auto want = gradients(kFloat32);
  for (DType t : kHalves) {
    const double tolerance = t == kBFloat16 ? 0x1p-5 : 0x1p-8;  // Eight roundings on each path.
    const auto got = gradients(t);
    for (size_t i = 0; i < want.size(); ++i) {
      CHECK(got[i].dtype() == kFloat32);
      CHECK((got[i] - want[i]).norm().item<float>() <= tolerance * want[i].norm().item<float>());
    }
  }
}

TEST_CASE("autocast: both modes agree to the bit, in one recording") {
  for (DType t : kHalves) {
    same_in_all_modes([&](const StepOptions& options, Trace& trace) {
      Mixed m;
      m.dtype = t;
      auto step =
          brrr::step([&](const Tensor& x, const Tensor& y) { return m.run(x, y); }, options);
      for (int i = 0; i < 10; ++i) m.log(trace, step(randn({4, 6}), randint(0, 3, {4})));
      if (options.mode == Mode::Eager) return;
      CHECK(step.stats().recordings == 1);
      CHECK(step.stats().fallbacks == 0);
    });
  }
}

TEST_CASE("autocast: toggling it between calls never replays the other recording") {
  const DType order[] = {kFloat32, kBFloat16, kBFloat16, kFloat32, kFloat16, kBFloat16, kFloat32};
  for (bool inside : {false, true}) {
    same_in_all_modes([&](const StepOptions& options, Trace& trace) {
      Mixed m;
      m.dtype = kFloat32;
      auto step = brrr::step(
          [&](const Tensor& x, const Tensor& y) {
            if (inside) return m.run(x, y);
            m.opt.zero_grad();
            Tensor loss = cross_entropy(m.model(x), y);
            loss.backward();
            m.opt.step();
            return loss.detach();
          },
          options);
      for (DType t : order) {
        std::optional<AutocastGuard> guard;
        inside ? void(m.dtype = t) : void(guard.emplace(t));
        m.log(trace, step(randn({4, 6}), randint(0, 3, {4})));
      }
      if (options.mode == Mode::Graph) CHECK(step.stats().recordings == 3);
    });
  }
}

TEST_CASE("autocast: a frozen step notices that the guard around it has changed") {
  const Tensor w = randn({3, 3});
  auto step = brrr::step([&](const Tensor& x) { return matmul(x, w).to(kFloat32); });
  const Tensor x = randn({2, 3});
  step(x);
  step.freeze();
  const Tensor wide = step(x);
  CHECK(same_bits(wide, matmul(x, w)));
  AutocastGuard guard(kBFloat16);
  CHECK(same_bits(step(x), matmul(x, w).to(kFloat32)));
  CHECK_FALSE(same_bits(step(x), wide));
}

TEST_CASE("autocast: a weight is cast once for each forward use, never by backward") {
  const Tensor w = leaf_of({4, 6});
  auto ops = [&](int uses, DType dtype) {
    auto step = brrr::step(
        [&](const Tensor& x) {
          w.set_grad({});
          AutocastGuard guard(dtype);
          Tensor sum = zeros({});
          for (int i = 0; i < uses; ++i) sum = sum + linear(x, w).sum();
          sum.backward();
          return sum.detach();
        },
        StepOptions{.require_graph = true, .build_at_first_call = true});
    step(randn({2, 6}).to(dtype));
    return step.stats().ops_per_replay;
  };
  // For each use: the weight's cast, the cast of the sum's operand, and the backward of both, whose
  // result becomes the leaf's gradient without another copy.
  CHECK(ops(1, kBFloat16) == ops(1, kFloat32) + 4);
  CHECK(ops(2, kBFloat16) == ops(2, kFloat32) + 8);
}
