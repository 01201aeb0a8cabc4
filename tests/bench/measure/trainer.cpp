#include "tests/bench/measure/trainer.h"

namespace brrr::bench {

const char* name_of(Way way) {
  constexpr const char* names[] = {"eager", "graph", "graph+fusion", "frozen"};
  return names[static_cast<size_t>(way)];
}

StepOptions options_of(Way way, StepOptions o) {
  o.mode = way == Way::Eager ? Mode::Eager : Mode::Graph;
  o.fuse = way != Way::Unfused;
  return o;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 const models::Module& model) {
  const auto parameters = model.parameters();
  if (name == "sgd") return std::make_unique<optim::SGD>(parameters, optim::SGDOptions{});
  return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{});
}

Learner mlp_learner(const models::MLPOptions& options) {
  auto model = std::make_shared<models::MLP>(options);
  return {model,
          [&m = *model](const Tensor& x, const Tensor& y) { return cross_entropy(m(x), y); }};
}

Learner gpt_learner(const models::GPTOptions& options) {
  auto model = std::make_shared<models::GPT>(options);
  return {model, [&m = *model](const Tensor& x, const Tensor& y) { return m.loss(x, y); }};
}

Batches Batches::to(Device device) const {
  Batches moved;
  for (const Tensor& t : x) moved.x.push_back(t.to(device));
  for (const Tensor& t : y) moved.y.push_back(t.to(device));
  return moved;
}

Trainer::Trainer(Learner learner, const Batches& batches, const std::string& optimizer,
                 const StepOptions& options)
    : learner_(std::move(learner)),
      batches_(batches),
      optimizer_(make_optimizer(optimizer, *learner_.model)),
      parallel_(dist::size() > 1 ? std::make_unique<dist::DataParallel>(*learner_.model) : nullptr),
      lr_(optimizer_->lr()),
      eager_(options.mode == Mode::Eager),
      step_(Body{this}, options) {}

Tensor Trainer::step(int64_t i) {
  const size_t k = static_cast<size_t>(i) % batches_.x.size();
  return trace ? traced(k) : step_(batches_.x[k], batches_.y[k]);
}

Tensor Trainer::scheduled_step(int64_t i) {
  optimizer_->set_lr(lr_ * (1.0 - static_cast<double>(i % 1000) / 1000));
  return step(i);
}

Tensor Trainer::body(const Tensor& x, const Tensor& y) {
  mark(0);
  if (parallel_) parallel_->begin_pass();
  Tensor loss = learner_.loss(x, y);
  mark(1);
  optimizer_->zero_grad();
  loss.backward();
  mark(2);
  optimizer_->step();
  mark(3);
  return loss.detach();
}

// In graph mode the function runs without data: its phases are recording or verification, and the
// work itself follows.
Tensor Trainer::traced(size_t k) {
  const StepStats before = step_.stats();
  marks_ = {};
  const auto begin = Clock::now();
  Tensor loss = step_(batches_.x[k], batches_.y[k]);
  const auto end = Clock::now();
  const StepStats after = step_.stats();
  const bool recorded = after.recordings > before.recordings;
  const bool built = after.build_seconds > before.build_seconds;
  const std::string run = recorded ? "walk" : built ? "fuse, plan, build, replay" : "replay";
  trace->span("step", begin, end);
  if (marks_[3] == Trace::Time()) {
    trace->span(run, begin, end);  // Frozen: the function did not run.
    return loss;
  }
  const std::string prefix = eager_ ? "" : recorded ? "record " : "verify ";
  constexpr const char* phases[] = {"forward", "backward", "update"};
  for (size_t p = 0; p < 3; ++p) trace->span(prefix + phases[p], marks_[p], marks_[p + 1]);
  if (!eager_) trace->span(run, marks_[3], end);
  return loss;
}

}  // namespace brrr::bench
