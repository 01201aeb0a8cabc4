// From "the loss is NaN" to its cause: check_numerics in both modes, first_nonfinite.
#include <cmath>

#include "tests/pitfalls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

/// The log, or the root, of a layer's output: NaN where that is negative, or in the slope at zero.
struct Bad : models::Module {
  models::Linear fc1{6, 8}, fc2{8, 3};
  bool bad = false, rooted = false;
  Bad() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = fc1(x);
    return fc2(bad ? h.log() : rooted ? h.sqrt() : h);
  }
};
struct Root : models::Module {
  Bad net;
  Root() { register_module("net", net); }
};

const Mode kModes[] = {Mode::Eager, Mode::Graph};

}  // namespace

TEST_CASE("pitfall E3: check_numerics names op, module and shapes in both modes") {
  for (Mode mode : kModes) {
    manual_seed(1);
    Root root;
    optim::SGD opt(root.parameters(), {.lr = 0.1});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          Tensor loss = cross_entropy(root.net(x), y);
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss.detach();
        },
        StepOptions{.mode = mode, .check_numerics = true});
    for (int i = 0; i < 3; ++i) CHECK(std::isfinite(step(randn({4, 6}), labels()).item<float>()));
    root.net.bad = true;
    const Tensor w = root.net.fc1.weight.detach().clone();
    const std::string text = error_of([&] { step(randn({4, 6}), labels()); });
    CHECK(contains(text, "not finite"));
    CHECK(contains(text, "net: log("));
    CHECK(contains(text, "float32[4, 8]"));
    CHECK(same_bits(root.net.fc1.weight, w));
    // An operand that was not finite before the step is named, and the op is not blamed.
    root.net.bad = false;
    Tensor x = randn({4, 6});
    x.select(0, 2).fill_(kInf);
    const std::string outside = error_of([&] { step(x, labels()); });
    CHECK(contains(outside, "net.fc1: linear("));
    CHECK(contains(outside, "operand 0, float32[4, 6], was not finite when the step began"));
    // In the backward pass: the square root's slope at zero, with the module that took the root.
    root.net.rooted = true;
    root.net.fc1.weight.detach().zero_();
    root.net.fc1.bias.detach().zero_();
    const std::string slope = error_of([&] { step(randn({4, 6}), labels()); });
    CHECK(contains(slope, "sqrt.grad0("));
    CHECK(contains(slope, "float32[4, 8]"));
    CHECK(contains(slope, ", near net"));
  }
}

TEST_CASE("check_numerics in eager mode: host reads work, and it ends with the step") {
  const Tensor bad = full({2}, -1.0);
  auto step = brrr::step(
      [&](const Tensor& x) {
        if (x.sum().item<float>() > 0) throw std::runtime_error("user");
        return x.exp();
      },
      StepOptions{.mode = Mode::Eager, .check_numerics = true});
  CHECK(step(bad).numel() == 2);
  CHECK(std::isnan(bad.log().to_vector<float>()[0]));
  CHECK_THROWS_AS(step(ones({2})), std::runtime_error);
  CHECK(std::isnan(bad.log().to_vector<float>()[0]));
  // Inside another eager step, and inside a recording, where the outer step's options hold.
  auto inner = brrr::step([&](const Tensor& x) { return x.log(); },
                          StepOptions{.mode = Mode::Eager, .check_numerics = true});
  auto outer = brrr::step(
      [&](const Tensor& x) {
        const Tensor before = x.log();  // Unchecked.
        CHECK(contains(error_of([&] { inner(x); }), "log("));
        return x.log() + before;
      },
      Mode::Eager);
  CHECK(std::isnan(outer(bad).to_vector<float>()[0]));
  auto recorded = brrr::step([&](const Tensor& x) { return inner(x) * 2.0; });
  CHECK(std::isnan(recorded(bad).to_vector<float>()[0]));
}

TEST_CASE("check_numerics: a mask's infinities pass, non-finite results of it do not") {
  const Tensor keep = tensor({{1.0, 0.0}, {1.0, 1.0}}) > 0.5;
  const Tensor bias = where(keep, zeros({2, 2}), -kInf);  // Made outside of the step.
  const Tensor x = tensor({{0.5, 2.0}, {-1.0, 3.0}});
  const auto error = [&](Mode mode, const auto& f) {
    auto s = step([&](const Tensor& a) { return f(a); },
                  StepOptions{.mode = mode, .check_numerics = true});
    return error_of([&] { s(x), s(x); });
  };
  for (Mode mode : kModes) {
    CHECK(error(mode, [&](const Tensor& a) {
            Tensor scores = where(keep, a, -kInf);
            scores.mul_(0.5);
            return softmax(scores, -1) + softmax(a + bias, -1);
          }).empty());
    CHECK(error(mode, [&](const Tensor& a) {
            return amin(where(keep, a, kInf), -1, false) + triu(full({2, 2}, -kInf), 1).exp().sum();
          }).empty());
    // A masked target, a fully masked row, an infinity of the op's own.
    const Tensor hidden = tensor(std::vector<int64_t>{1, 1});
    CHECK(contains(error(mode, [&](const Tensor& a) { return cross_entropy(a + bias, hidden); }),
                   "cross_entropy("));
    const std::string all = error(mode, [](const Tensor& a) { return softmax(a - kInf, -1); });
    CHECK(contains(all, "softmax("));
    CHECK(contains(all, "its operand 0, float32[2, 2], holds infinities of a mask"));
    // A tensor that reuses a mask's memory is not a mask.
    CHECK(contains(error(mode,
                         [&](const Tensor& a) {
                           where(keep, a, -kInf);
                           return log(tensor({{0.0, 0.0}, {0.0, 0.0}}));
                         }),
                   "log("));
    CHECK(contains(error(mode,
                         [&](const Tensor& a) {
                           return (a + bias) / zeros({2, 2});
                         }),
                   "div("));
    // Attention's second-order gradient masks scores itself.
    CHECK(error(mode, [&](const Tensor& a) {
            Tensor q = a.detach().view({1, 2, 2}).requires_grad_();
            const Tensor y = scaled_dot_product_attention(q, q, q, {.causal = true}).pow(2.0).sum();
            const auto g = grad({y}, {q}, {.create_graph = true});
            return grad({g[0].pow(2.0).sum()}, {q})[0];
          }).empty());
  }
}

TEST_CASE("check_numerics: the largest score of a fully masked query is not a result") {
  const Tensor mask = ones({4, 4}, kBool), q = randn({1, 4, 8}).set_requires_grad();
  mask.select(0, 1).fill_(false);
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    auto step = brrr::step(
        [&] {
          q.set_grad({});
          const Tensor loss = scaled_dot_product_attention(q, q, q, {.mask = mask}).sum();
          loss.backward();
          return loss.detach();
        },
        {.mode = mode, .check_numerics = true});
    CHECK(error_of([&] { step(); }) == "");
  }
}

TEST_CASE("first_nonfinite: parameters and gradients in module order") {
  manual_seed(2);
  Root root;
  const auto params = root.named_parameters();
  CHECK(models::first_nonfinite(root).empty());
  cross_entropy(root.net(randn({4, 6})), labels()).backward();
  CHECK(models::first_nonfinite(root).empty());
  NoGradGuard guard;
  params[3].second.select(0, 1).fill_(kInf);
  CHECK(models::first_nonfinite(root) == "net.fc2.bias, float32[3]: 1 of 3 elements is not finite");
  params[2].second.grad().fill_(std::nan(""));
  CHECK(models::first_nonfinite(root) ==
        "net.fc2.weight.grad, float32[3, 8]: 24 of 24 elements are not finite");
  params[0].second.select(1, 0).fill_(-kInf);
  CHECK(models::first_nonfinite(root) ==
        "net.fc1.weight, float32[8, 6]: 8 of 48 elements are not finite");
  const std::vector<NamedTensor> some = {
      {"none", {}}, {"ids", ones({2}, kInt64)}, {"half", full({2}, kInf, kFloat16)}};
  CHECK(models::first_nonfinite(some) == "half, float16[2]: 2 of 2 elements are not finite");
}

TEST_CASE("first_nonfinite finds what a step with a bad batch left behind") {
  for (Mode mode : kModes) {
    manual_seed(3);
    Trainer<optim::AdamW, optim::AdamWOptions> w({.lr = 1e-2});
    auto step = brrr::step([&](const Tensor& x, const Tensor& y) { return w.train(x, y); },
                           StepOptions{.mode = mode, .build_at_first_call = true});
    CHECK(std::isfinite(step(randn({4, 6}), labels()).item<float>()));
    CHECK(models::first_nonfinite(w.model).empty());
    Tensor x = randn({4, 6});
    x.select(0, 0).fill_(std::nan(""));
    CHECK_FALSE(std::isfinite(step(x, labels()).item<float>()));
    const std::string name = w.model.named_parameters()[0].first;
    CHECK(models::first_nonfinite(w.model).starts_with(name + ", float32[8, 6]"));
  }
}
