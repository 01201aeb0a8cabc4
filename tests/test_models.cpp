// Modules and layers.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "autograd/autograd.h"
#include "graph/step.h"
#include "models/mlp.h"
#include "ops/factory_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "tests/error_text.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// A tensor assigned to a member would be neither trained nor saved.
static_assert(!std::is_assignable_v<decltype((std::declval<models::Linear&>().weight)), Tensor>);

struct Net : models::Module {
  models::Linear fc1{5, 4}, fc2{4, 3};
  Net() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

}  // namespace

TEST_CASE("module: names, counts, modes") {
  Net net;
  std::vector<std::string> names;
  for (auto& [name, t] : net.named_parameters()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"});
  CHECK(net.num_parameters() == 5 * 4 + 4 + 4 * 3 + 3);
  CHECK(net.fc1.weight.sizes() == IntList{4, 5});
  CHECK(net.fc1.weight.requires_grad());
  CHECK(net.fc1.name() == "fc1");
  CHECK(net(ones({2, 5})).sizes() == IntList{2, 3});
  net.eval();
  CHECK_FALSE(net.fc2.is_training());
  net.train();
  CHECK(net.fc2.is_training());
  const double bound = 1 / std::sqrt(5.0);
  for (double w : net.fc1.weight.to_vector<double>()) CHECK(std::abs(w) <= bound);
}

TEST_CASE("module: a mode is restored if the step that switched it throws") {
  models::MLP net({.sizes = {4, 4}, .dropout = 0.5});
  auto step = brrr::step([&](const Tensor& x) {
    net.eval();
    CHECK_FALSE(net.is_training());
    if (x.size(0) == 2) throw std::runtime_error("thrown out");
    return net(x);
  });
  CHECK_THROWS_AS(step(ones({2, 4})), std::runtime_error);
  CHECK(net.is_training());
  step(ones({1, 4}));
  CHECK_FALSE(net.is_training());
}

TEST_CASE("module: registering twice, dots, cycles and missing forward are errors") {
  Net net;
  models::Dropout d(0.5);
  CHECK_THROWS_AS(net.register_module("fc1", d), Error);
  CHECK_THROWS_AS(net.register_module("a.b", d), Error);
  CHECK_THROWS_AS(net.register_module("", d), Error);
  CHECK_THROWS_AS(net.register_module("self", net), Error);
  models::Module outer;
  outer.register_module("net", net);
  CHECK_THROWS_AS(net.register_module("outer", outer), Error);
  CHECK_THROWS_AS(net.register_parameter("fc2", ones({2})), Error);
  CHECK_THROWS_AS(net.register_parameter("ids", zeros({2}, kInt64)), Error);
  net.register_parameter("scale", ones({2}));
  CHECK_THROWS_AS(net.register_buffer("scale", ones({2})), Error);
  models::Module plain;
  CHECK_THROWS_AS(plain(ones({1})), Error);
  CHECK_THROWS_AS(models::Dropout(1.5), Error);
  CHECK(models::Dropout(1.0)(ones({2})).to_vector<float>() == std::vector<float>{0, 0});
  CHECK_THROWS_AS(models::Linear(0, 3), Error);
}

TEST_CASE("module: tied parameters count once, buffers are state") {
  models::Module m;
  Tensor t = m.register_parameter("a", ones({3}));
  m.register_parameter("b", t);
  m.register_buffer("mean", zeros({2}));
  CHECK(m.parameters().size() == 1);
  CHECK(m.state_dict().size() == 3);
  CHECK(m.named_buffers().size() == 1);
}

TEST_CASE("module: to(dtype) keeps handles, gradients and requires_grad") {
  Net net;
  net(ones({1, 5})).sum().backward();
  const std::vector<double> before = net.fc1.weight.to_vector<double>();
  net.to(kFloat64);
  CHECK(net.fc1.weight.dtype() == kFloat64);
  CHECK(net.fc1.weight.requires_grad());
  CHECK(net.fc1.weight.is_same(net.parameters()[0]));
  CHECK(net.fc1.weight.grad().dtype() == kFloat64);
  CHECK(net.fc1.weight.to_vector<double>() == before);
  CHECK(net(ones({1, 5}).to(kFloat64)).dtype() == kFloat64);
  CHECK_THROWS_AS(net.to(kInt64), Error);
}

TEST_CASE("module: to(dtype) after a forward pass counts as a write to saved tensors") {
  models::Module m;
  const Tensor w = m.register_parameter("w", ones({3}));
  const Tensor y = w * w;
  m.to(kFloat64);
  CHECK(contains(error_of([&] { y.sum().backward(); }), "was changed in place"));
}

TEST_CASE("module: a frozen step sees to(dtype)") {
  models::Module m;
  const Tensor w = m.register_parameter("w", ones({3})), x = ones({3});
  auto step = brrr::step([&](const Tensor& t) {
    const NoGradGuard guard;
    return w * t;
  });
  for (int call = 0; call < 3; ++call) step(x);
  step.freeze();
  CHECK(step(x).dtype() == kFloat32);
  m.to(kFloat64);
  CHECK(step(x).dtype() == kFloat64);
}

TEST_CASE("module: to(dtype) of a parameter that was a view does not change its base") {
  struct Part : models::Module {
    explicit Part(const Tensor& t) { register_parameter("p", t); }
  };
  Tensor flat = zeros({8});
  {
    Part part(flat.slice(0, 0, 4));
    part.to(kFloat64);
    CHECK(part.parameters()[0].dtype() == kFloat64);
  }
  flat.mul_(ones({8}).set_requires_grad());  // No view of it is left.
  CHECK(flat.requires_grad());
}

TEST_CASE("load_state_dict checks everything before it changes anything") {
  Net from, to;
  const std::vector<float> old = to.fc1.weight.to_vector<float>();
  StateDict dict = from.state_dict();
  dict["fc2.bias"] = zeros({7});
  dict["other\x1b[31m" + std::string(500, 'n')] = zeros({1});
  dict.erase("fc2.weight");
  const std::string text = error_of([&] { to.load_state_dict(dict); });
  CHECK(contains(text, "missing: fc2.weight"));
  CHECK(contains(text, "unexpected: other?[31mnnn"));
  CHECK(text.size() < 400);
  CHECK(contains(text, "fc2.bias (is float32[7], expected float32[3])"));
  CHECK(to.fc1.weight.to_vector<float>() == old);
  CHECK_THROWS_AS(to.load_state_dict(dict, false), Error);
  dict.erase("fc2.bias");
  to.load_state_dict(dict, false);
  CHECK(to.fc1.weight.to_vector<float>() == from.fc1.weight.to_vector<float>());
  dict = from.state_dict();
  dict["fc1.bias"] = dict["fc1.bias"].to(kFloat64);
  CHECK_THROWS_AS(to.load_state_dict(dict), Error);
  dict["fc1.bias"] = Tensor();
  CHECK_THROWS_AS(to.load_state_dict(dict), Error);
  to.load_state_dict(from.state_dict());
  CHECK(to.fc2.weight.to_vector<float>() == from.fc2.weight.to_vector<float>());
  dict = from.state_dict();
  for (int i = 0; i < 12; ++i) dict["other" + std::to_string(i)] = zeros({1});
  CHECK(contains(error_of([&] { to.load_state_dict(dict); }), " and 2 more"));
}

TEST_CASE("load_state_dict: a model's tensors under other names") {
  models::Sequential net;
  for (int i = 0; i < 2; ++i) net.add<models::Linear>(2, 2);
  StateDict dict = net.state_dict();
  std::swap(dict["0.weight"], dict["1.weight"]);
  const std::vector<float> first = dict["0.weight"].to_vector<float>();
  const std::vector<float> last = dict["1.weight"].to_vector<float>();
  net.load_state_dict(dict);
  CHECK(net.state_dict()["0.weight"].to_vector<float>() == first);
  CHECK(net.state_dict()["1.weight"].to_vector<float>() == last);
}

TEST_CASE("mlp: activations come from one table, errors list it") {
  for (const char* name : {"relu", "gelu", "tanh", "silu", "sigmoid"}) {
    models::MLP mlp({.sizes = {6, 5, 4}, .activation = name, .dropout = 0.5});
    CHECK(mlp(ones({3, 6})).sizes() == IntList{3, 4});
    CHECK(mlp.named_parameters().front().first == "fc1.weight");
  }
  const std::string text = error_of([] { models::MLP({.sizes = {2, 2}, .activation = "swish"}); });
  CHECK(contains(text, "relu, gelu, tanh, silu, sigmoid"));
  CHECK_THROWS_AS(models::MLP({.sizes = {2}}), Error);
}

TEST_CASE("layers: norms over no dims, or dims of size 0, are refused when constructed") {
  CHECK_THROWS_AS(models::LayerNorm(IntList{}), Error);
  CHECK_THROWS_AS(models::LayerNorm(IntList{4, 0}), Error);
  const models::LayerNorm two({2, 3});  // Not a copy of a norm of size 2.
  const models::RMSNorm other({2, 3});
  CHECK((two.weight.numel() == 6 && other.weight.numel() == 6));
  CHECK_THROWS_AS(models::RMSNorm(IntList{-3}), Error);
}

TEST_CASE("layers: embedding, norms, dropout") {
  models::Embedding e(7, 3);
  CHECK(e(tensor({{1, 2}, {6, 0}})).sizes() == IntList{2, 2, 3});
  models::LayerNorm ln{4};
  CHECK(ln(randn({2, 4})).sum({1}).abs().max().item<float>() < 1e-4f);
  models::RMSNorm rms{4};
  CHECK(rms(ones({2, 4})).sum().item<float>() == doctest::Approx(8).epsilon(1e-4));
  models::Dropout d(0.5);
  const std::vector<float> y = d(ones({1000})).to_vector<float>();
  for (float v : y) CHECK((v == 0.0f || v == 2.0f));
  d.eval();
  CHECK(d(ones({10})).sum().item<float>() == 10.0f);
}

TEST_CASE("layers: a Sequential of modules and functions equals calling them by hand") {
  manual_seed(6);
  Net by_hand;
  manual_seed(6);
  models::Sequential net;
  net.add<models::Linear>(5, 4);
  net.add(relu);
  const models::Linear& last = net.add<models::Linear>(4, 3);
  const models::Dropout& dropout = net.add<models::Dropout>(0.5);
  std::vector<std::string> names;
  for (auto& [name, t] : net.named_parameters()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"});
  CHECK(last.name() == "2");
  net.eval();
  CHECK(!dropout.is_training());
  const Tensor x = randn({2, 5});
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    auto run = step([&](const Tensor& in) { return net(in); }, mode);
    for (int i = 0; i < 3; ++i) {
      CHECK(run(x).to_vector<float>() == by_hand(x).to_vector<float>());
    }
  }
  CHECK(models::Sequential()(x).to_vector<float>() == x.to_vector<float>());
  CHECK(contains(error_of([&] { net.add(std::function<Tensor(const Tensor&)>()); }),
                 "Sequential: part 4 is an empty function"));
}
