// Models train on a device as on the CPU: the same program, losses that differ by rounding only.

#include <cmath>
#include <thread>

#include "brrr.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;
using namespace brrr::models;

namespace {

// The model is made on the CPU, from the same seed for every device, then moved.
template <class M, class Options> std::unique_ptr<M> made(const Options& options, Device device) {
  manual_seed(21);
  auto model = std::make_unique<M>(options);
  model->to(device);
  return model;
}

void check_losses(const std::vector<double>& gpu, const std::vector<double>& cpu) {
  REQUIRE(gpu.size() == cpu.size());
  for (size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    CHECK(std::fabs(gpu[i] - cpu[i]) <= 1e-5 * std::fabs(cpu[i]));
  }
  CHECK(cpu.back() < cpu.front());
}

using MakeOptimizer = std::unique_ptr<optim::Optimizer> (*)(std::vector<Tensor>);

// Losses of 30 steps of a classifier with dropout and clipped gradients.
std::vector<double> train_mlp(Device device, const char* activation, MakeOptimizer make) {
  const auto model =
      made<MLP>(MLPOptions{.sizes = {20, 32, 5}, .activation = activation, .dropout = 0.1}, device);
  const auto optimizer = make(model->parameters());
  const Tensor x = randn({64, 20}).to(device), labels = randint(0, 5, {64}).to(device);
  std::vector<double> losses;
  for (int i = 0; i < 30; ++i) {
    optimizer->zero_grad();
    const Tensor loss = cross_entropy((*model)(x), labels);
    loss.backward();
    optim::clip_grad_norm_(model->parameters(), 1.0);
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

GPTOptions small_gpt() {
  return {.vocab = 17, .block = 12, .layers = 2, .heads = 2, .width = 16, .dropout = 0.1};
}

std::vector<double> train_gpt(Device device, const GPTOptions& options) {
  const auto gpt = made<GPT>(options, device);
  optim::AdamW optimizer(gpt->parameters(), {.lr = 1e-3});
  const Tensor ids = randint(0, 17, {3, 12}).to(device), next = randint(0, 17, {3, 12}).to(device);
  std::vector<double> losses;
  for (int i = 0; i < 8; ++i) {
    optimizer.zero_grad();
    const Tensor loss = gpt->loss(ids, next);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

}  // namespace

TEST_CASE("cuda: an MLP trains as on the CPU") {
  if (!have_device()) return;
  const std::pair<const char*, MakeOptimizer> cases[] = {
      {"relu",
       [](std::vector<Tensor> p) -> std::unique_ptr<optim::Optimizer> {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
       }},
      {"gelu",
       [](std::vector<Tensor> p) -> std::unique_ptr<optim::Optimizer> {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 1e-3});
       }},
      {"silu", [](std::vector<Tensor> p) -> std::unique_ptr<optim::Optimizer> {
         return std::make_unique<optim::Adam>(p, optim::AdamOptions{.lr = 1e-3});
       }}};
  for (const auto& c : cases) {
    CAPTURE(std::string(c.first));
    check_losses(train_mlp(kCUDA, c.first, c.second), train_mlp(kCPU, c.first, c.second));
  }
}

TEST_CASE("cuda: a GPT trains as on the CPU") {
  if (!have_device()) return;
  check_losses(train_gpt(kCUDA, small_gpt()), train_gpt(kCPU, small_gpt()));
  GPTOptions modern = small_gpt();
  modern.positions = "rotary";
  modern.activation = "swiglu";
  modern.norm = "rms";
  modern.tie_weights = false;
  check_losses(train_gpt(kCUDA, modern), train_gpt(kCPU, modern));
}

TEST_CASE("cuda: text is generated as on the CPU") {
  if (!have_device()) return;
  for (double temperature : {0.0, 0.8}) {
    CAPTURE(temperature);
    const GenerateOptions options{
        .tokens = 20, .temperature = temperature, .top_k = 9, .top_p = 0.9, .seed = 5};
    const auto cpu = made<GPT>(small_gpt(), kCPU), gpu = made<GPT>(small_gpt(), kCUDA);
    CHECK(generate(*gpu, {1, 2, 3}, options) == generate(*cpu, {1, 2, 3}, options));
  }
}

TEST_CASE("cuda: batches come from a data set on the device") {
  if (!have_device()) return;
  const Tensor images = randn({40, 6}), labels = randint(0, 3, {40});
  data::Loader cpu({images, labels}, {.batch = 7, .seed = 3});
  data::Loader gpu({images.to(kCUDA), labels.to(kCUDA)}, {.batch = 7, .seed = 3});
  for (int i = 0; i < 8; ++i) {
    const data::Batch a = gpu.next(), b = cpu.next();
    CHECK(device_difference(a.x, b.x) == "");
    CHECK(device_difference(a.y, b.y) == "");
    const Tensor logits = b.x.narrow(1, 0, 3);
    CHECK(data::accuracy(logits.to(kCUDA), a.y) == data::accuracy(logits, b.y));
  }
}

TEST_CASE("cuda: second derivatives stay on the device") {
  if (!have_device()) return;
  auto second = [](const Tensor& from) {
    const Tensor x = leaf(from);
    const Tensor y = (x.pow(3.0) * 2.0 + (x * 0.5).exp() / 3.0).sum();
    const Tensor g = grad({y}, {x}, {.create_graph = true})[0];
    return grad({g.square().sum()}, {x})[0];
  };
  const Tensor x = sampled({5, 7}, kFloat32, 0.5, 2);
  check_close(on_cpu(second(x.to(kCUDA))), second(x), 1e-6);
}

TEST_CASE("cuda: tensors made without a device are on this thread's default device") {
  if (!have_device()) return;
  const Device before = default_device();
  set_default_device(kCUDA);
  const MLP model({.sizes = {4, 3}, .activation = "relu"});
  const std::vector<Tensor> made{
      zeros({2}),           full({2}, 1.0),       arange(3), rand({2}), randperm(4),
      tensor({1.0f, 2.0f}), model.parameters()[0]};
  Device elsewhere = kCUDA;
  std::thread([&] { elsewhere = default_device(); }).join();
  const float number = 1;
  const Tensor blob = from_blob(&number, {1}, kFloat32);
  set_default_device(before);
  for (const Tensor& t : made) CHECK(t.device() == kCUDA);
  CHECK(blob.device() == kCPU);
  CHECK(elsewhere == kCPU);
  CHECK(zeros({2}).device() == before);
}

TEST_CASE("cuda: a scaler on another device than the loss says so") {
  if (!have_device()) return;
  const optim::GradScaler scaler({.device = kCPU});
  CHECK(error_of([&] { scaler.scale(ones({}, kCUDA)); }) ==
        "GradScaler::scale: the loss is on cuda:0, the scale on cpu; give the scaler that .device");
}

TEST_CASE("cuda: gradcheck takes inputs on the device") {
  if (!have_device()) return;
  const auto fn = [](const std::vector<Tensor>& in) { return (in[0] * in[1].exp()).tanh(); };
  const std::vector<Tensor> in{randn({2, 3}, kCUDA).to(kFloat64), randn({3}, kCUDA).to(kFloat64)};
  const GradcheckResult r = gradcheck(fn, in, {.second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
  const auto wrong = [](const std::vector<Tensor>& at) {
    return at[0] * at[0].detach();  // Half of the gradient is missing.
  };
  CHECK_FALSE(gradcheck(wrong, {in[0]}, {}).ok);
}

TEST_CASE("cuda: an optimiser made before the model moved says so") {
  if (!have_device()) return;
  Linear layer(3, 2);
  optim::AdamW adam(layer.parameters(), {});
  optim::SGD plain(layer.parameters(), {.lr = 0.5});
  layer.to(kCUDA);
  const Tensor before = on_cpu(layer.weight).clone();
  layer(randn({4, 3}, kCUDA)).sum().backward();
  CHECK(error_of([&] { adam.step(); }) ==
        "AdamW: parameter 0 is on cuda:0, its state on cpu; make the optimiser after "
        "model.to(device)");
  check_same(on_cpu(layer.weight), before);
  plain.step();  // It has no state.
  CHECK(difference(on_cpu(layer.weight), before) != "");
}
