#include "examples/common/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace examples {

namespace {

using brrr::Tensor;

const std::vector<int64_t> kLayers = {784, 256, 128, 10};
const brrr::models::GPTOptions kGpt = {
    .vocab = 65, .block = 32, .layers = 2, .heads = 4, .width = 64};

class MlpLearner : public Learner {
 public:
  Tensor loss(const Tensor& x, const Tensor& y) override {
    return brrr::cross_entropy(model_(x), y);
  }
  brrr::models::Module& model() override { return model_; }

 private:
  brrr::models::MLP model_{{.sizes = kLayers}};
};

class GptLearner : public Learner {
 public:
  Tensor loss(const Tensor& x, const Tensor& y) override { return model_.loss(x, y); }
  brrr::models::Module& model() override { return model_; }

 private:
  brrr::models::GPT model_{kGpt};
};

Task mlp_task() {
  Task t;
  t.name = fmt::format("MLP {}", fmt::join(kLayers, "-"));
  t.one_kernel = "cross-entropy, a parameter's update";
  t.sizes = {1, 8, 32, 128, 512, 1024};
  t.batches = [](int64_t batch) {
    brrr::manual_seed(7);
    Batches b;
    for (size_t i = 0; i < kBatches; ++i) {
      b.x.push_back(brrr::randn({batch, kLayers.front()}));
      b.y.push_back(brrr::randint(0, kLayers.back(), {batch}));
    }
    return b;
  };
  t.learner = [] { return std::make_unique<MlpLearner>(); };
  t.cost = [](int64_t batch, const std::string& optimizer) {
    return mlp_cost(kLayers, batch, optimizer);
  };
  t.working_set = [](int64_t batch, const std::string& optimizer) {
    return mlp_working_set(kLayers, batch, optimizer);
  };
  return t;
}

Task gpt_task() {
  const GptShape shape{kGpt.vocab, kGpt.block, kGpt.layers, kGpt.heads, kGpt.width};
  Task t;
  t.name = fmt::format("GPT, {} layers, width {}, {} heads, block {}, vocabulary {}", kGpt.layers,
                       kGpt.width, kGpt.heads, kGpt.block, kGpt.vocab);
  t.one_kernel = "attention, layer norm, cross-entropy, a parameter's update";
  t.sizes = {1, 2, 4, 8, 16, 32, 64};
  t.batches = [](int64_t batch) {
    brrr::manual_seed(7);
    Batches b;
    for (size_t i = 0; i < kBatches; ++i) {
      b.x.push_back(brrr::randint(0, kGpt.vocab, {batch, kGpt.block}));
      b.y.push_back(brrr::randint(0, kGpt.vocab, {batch, kGpt.block}));
    }
    return b;
  };
  t.learner = [] { return std::make_unique<GptLearner>(); };
  t.cost = [shape](int64_t batch, const std::string& optimizer) {
    return gpt_cost(shape, batch, optimizer);
  };
  t.working_set = [shape](int64_t batch, const std::string& optimizer) {
    return gpt_working_set(shape, batch, optimizer);
  };
  return t;
}

}  // namespace

Batches Batches::to(brrr::Device device) const {
  Batches moved;
  for (const Tensor& t : x) moved.x.push_back(t.to(device));
  for (const Tensor& t : y) moved.y.push_back(t.to(device));
  return moved;
}

std::vector<Task> tasks(const std::string& model) {
  std::vector<Task> all;
  if (model != "gpt") all.push_back(mlp_task());
  if (model != "mlp") all.push_back(gpt_task());
  return all;
}

}  // namespace examples
