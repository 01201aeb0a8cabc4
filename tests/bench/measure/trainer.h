#pragma once
// The measured object: a training step over rotating batches.

#include <brrr/brrr.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/measure/output.h"

namespace brrr::bench {

enum class Way { Eager, Unfused, Graph, Frozen };
inline constexpr std::array kWays = {Way::Eager, Way::Unfused, Way::Graph, Way::Frozen};
const char* name_of(Way way);  ///< "eager", "graph", "graph+fusion" or "frozen".
StepOptions options_of(Way way, StepOptions others = {});

/// A model and the loss that a step minimises.
struct Learner {
  std::shared_ptr<models::Module> model;
  std::function<Tensor(const Tensor& x, const Tensor& y)> loss;
};
Learner mlp_learner(const models::MLPOptions& options);  ///< Cross-entropy.
Learner gpt_learner(const models::GPTOptions& options);

inline constexpr size_t kBatches = 16;

/// Rotating inputs, so that no batch stays in the cache for the next step.
struct Batches {
  std::vector<Tensor> x, y;
  Batches to(Device device) const;
};

/// "sgd" or "adamw", with default options.
std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 const models::Module& model);

/// Makes the same steps from the same start in any mode, with all processes of the run.
class Trainer {
 public:
  /// `batches` must outlive it; the learner's model is on their device.
  Trainer(Learner learner, const Batches& batches, const std::string& optimizer,
          const StepOptions& options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Step number `i` of the run, at the optimiser's lr; returns the loss.
  Tensor step(int64_t i);
  /// The same with a lr that falls with `i`, as a schedule's does.
  Tensor scheduled_step(int64_t i);
  void freeze() { step_.freeze(); }
  Device device() const { return batches_.x[0].device(); }
  /// What limits its step, on the first batch.
  Diagnosis diagnose() { return brrr::diagnose(step_, batches_.x[0], batches_.y[0]); }
  StepStats stats() const { return step_.stats(); }
  models::Module& model() const { return *learner_.model; }
  std::vector<Tensor> parameters() const { return model().parameters(); }
  /// If set, every step writes its phases to it.
  Trace* trace = nullptr;

 private:
  struct Body {
    Trainer* self;
    Tensor operator()(const Tensor& x, const Tensor& y) const { return self->body(x, y); }
  };
  Tensor body(const Tensor& x, const Tensor& y);
  Tensor traced(size_t k);
  void mark(size_t phase) {
    if (trace) marks_[phase] = Clock::now();
  }

  Learner learner_;
  const Batches& batches_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<dist::DataParallel> parallel_;  // Null in a single process.
  double lr_;
  bool eager_;
  std::array<Trace::Time, 4> marks_;
  Step<Body> step_;
};

}  // namespace brrr::bench
