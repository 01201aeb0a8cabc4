#include "examples/common/task.h"

#include <fmt/ranges.h>

namespace examples {

const std::vector<int64_t> kLayers = {784, 256, 128, 10};
const brrr::models::GPTOptions kGpt = {
    .vocab = 65, .block = 32, .layers = 2, .heads = 4, .width = 64};

static Batches mlp_batches(int64_t batch) {
  const auto y = [&] { return brrr::randint(0, kLayers.back(), {batch}); };
  return make_batches([&] { return brrr::randn({batch, kLayers.front()}); }, y);
}

static Batches gpt_batches(int64_t batch) {
  const auto ids = [&] { return brrr::randint(0, kGpt.vocab, {batch, kGpt.block}); };
  return make_batches(ids, ids);
}

Batches make_batches(const std::function<brrr::Tensor()>& x,
                     const std::function<brrr::Tensor()>& y) {
  brrr::manual_seed(7);
  Batches b;
  for (size_t i = 0; i < kBatches; ++i) {
    b.x.push_back(x());
    b.y.push_back(y());
  }
  return b;
}

std::string short_name(const std::string& task) { return task.substr(0, task.find_first_of(" ,")); }

std::vector<Task> tasks(const std::string& model) {
  const Task mlp{fmt::format("MLP {}", fmt::join(kLayers, "-")),
                 "cross-entropy, a parameter's update",
                 {1, 8, 32, 128, 512, 1024},
                 mlp_batches,
                 [] { return mlp_learner({.sizes = kLayers}); }};
  const Task gpt{fmt::format("GPT, {} layers, width {}, {} heads, block {}, vocabulary {}",
                             kGpt.layers, kGpt.width, kGpt.heads, kGpt.block, kGpt.vocab),
                 "attention, layer norm, cross-entropy, a parameter's update",
                 {1, 2, 4, 8, 16, 32, 64},
                 gpt_batches,
                 [] { return gpt_learner(kGpt); }};
  if (model == "own") return {own_task()};
  if (model == "mlp") return {mlp};
  if (model == "gpt") return {gpt};
  return {mlp, gpt};
}

std::unique_ptr<Trainer> make_trainer(const Task& task, const Batches& batches,
                                      const std::string& optimizer, Way way) {
  brrr::manual_seed(42);
  const Learner learner = task.learner();
  learner.model->to(batches.x[0].device());
  return std::make_unique<Trainer>(learner, batches, optimizer, options_of(way));
}

Anatomy dissect(Trainer& trainer, double us, int64_t steps) {
  constexpr int64_t warm_up = 3;
  for (int64_t i = 0; i < warm_up; ++i) trainer.scheduled_step(i);
  brrr::Profile profile;
  // Alternates turns of about a millisecond with and without the profile and compares neighbours,
  // because the machine's speed changes from second to second and single short steps are noisy.
  const auto a_turn = static_cast<int64_t>(std::clamp(1e3 / us, 1.0, static_cast<double>(steps)));
  std::vector<double> ratios;
  const brrr::Device device = trainer.device();
  double before = 0;
  for (int64_t i = 0; i < steps; i += a_turn) {
    const int64_t n = std::min(a_turn, steps - i);
    for (int64_t k = 0; k < n; ++k) trainer.scheduled_step(2 * i + k);
    const double now = profile.total().us;
    profile.pause();
    const auto begin = Clock::now();
    for (int64_t k = 0; k < n; ++k) trainer.scheduled_step(2 * i + n + k);
    brrr::synchronize(device);
    ratios.push_back((now - before) / (1e6 * seconds_since(begin)));
    before = now;
    profile.resume();
  }
  const brrr::TimeSplit t = profile.total();
  Anatomy a;
  a.profile_ratio = median(ratios);
  a.split = t.each(static_cast<double>(steps), us);
  a.steps = steps;
  a.kinds = profile.kinds();
  a.kernels = profile.rows();
  a.kernels.resize(std::min<size_t>(10, a.kernels.size()));
  a.profiled_us = t.us;
  a.kernels_us = profile.kernels_us();
  return a;
}

}  // namespace examples
