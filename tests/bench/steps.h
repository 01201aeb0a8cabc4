#pragma once

// The training steps that brrr and its peers run: their initial state, written to a file for the
// peers, and brrr's own run of one. bench_gpu and bench_steps measure them, peer_inputs.py and
// peer_torch_steps.cpp read the file.

#include <brrr/brrr.h>
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/measure/trainer.h"
#include "tests/bench/timed_step.h"

namespace brrr::bench {

struct StepMode {
  const char* suffix;
  Mode mode;
  bool frozen;
};

// A training step: its name, a factory for the model with its first weights, the batch.
struct StepTask {
  std::string name, key;
  std::function<Learner()> make;
  Tensor x, y;
  int64_t heads = 0;  // GPT only: cannot be derived from the weights.
};

inline StepTask mlp_task(int64_t batch) {
  const models::MLPOptions options{.sizes = {784, 256, 128, 10}, .activation = "relu"};
  return {mlp_step_name(batch), fmt::format("mlp-{}", batch),
          [=] {
            manual_seed(42);
            return mlp_learner(options);
          },
          randn({batch, 784}), randint(0, 10, {batch})};
}

inline StepTask gpt_task(const models::GPTOptions& options, int64_t batch) {
  return {gpt_step_name(options.layers, options.width, batch),
          fmt::format("gpt-{}x{}-{}", options.layers, options.width, batch),
          [=] {
            manual_seed(42);
            return gpt_learner(options);
          },
          randint(0, options.vocab, {batch, options.block}),
          randint(0, options.vocab, {batch, options.block}),
          options.heads};
}

// The peers' input file: weights, under the model's own names, batches and heads.
inline StateDict inputs_of(const std::vector<StepTask>& tasks) {
  StateDict inputs;
  for (const StepTask& task : tasks) {
    for (const auto& [name, t] : task.make().model->state_dict()) {
      inputs[task.key + "." + name] = t.detach().clone();
    }
    inputs[task.key + ".x"] = task.x;
    inputs[task.key + ".y"] = task.y;
    if (task.heads > 0) inputs[task.key + ".heads"] = full({1}, task.heads, kInt64);
  }
  return inputs;
}

// A task on a device; the constructor runs the steps whose losses are compared.
class StepRun {
 public:
  StepRun(const StepTask& task, const StepMode& mode, Device device)
      : batches_{{task.x.to(device)}, {task.y.to(device)}},
        trainer_(learner_on(task, device), batches_, "adamw",
                 {.mode = mode.mode, .require_graph = true}) {
    for (const Tensor& p : trainer_.parameters()) first_.push_back(p.detach().clone());
    for (int i = 0; i < kLosses; ++i) {
      if (mode.frozen && i == kLosses / 2) trainer_.freeze();
      losses_.push_back(step().item<float>());
    }
  }

  Tensor step() {
    ++steps_;
    return trainer_.step(0);
  }
  double steps() const { return static_cast<double>(steps_ - kLosses); }  // Timed ones.
  // Restores the first weights: many steps on one batch would drive gradients to denormals.
  void reset() {
    const NoGradGuard no_grad;
    std::vector<Tensor> now = trainer_.parameters();
    for (size_t i = 0; i < now.size(); ++i) now[i].copy_(first_[i]);
  }
  const std::vector<float>& losses() const { return losses_; }
  StepStats stats() const { return trainer_.stats(); }

 private:
  static Learner learner_on(const StepTask& task, Device device) {
    Learner learner = task.make();
    learner.model->to(device);
    return learner;
  }

  Batches batches_;
  Trainer trainer_;
  std::vector<Tensor> first_;
  std::vector<float> losses_;
  int64_t steps_ = 0;
};

}  // namespace brrr::bench
