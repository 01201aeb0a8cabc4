#pragma once
// Learning rate schedules. The rate is a closed-form function of the step number, so that a resumed
// run computes the same bits.

#include "models/optim.h"

namespace brrr::optim {

/// The base: sets the optimiser's lr at construction and in every step(). The optimiser must
/// outlive it. The optimiser's lr at construction is the base lr that the formulas scale.
class Schedule : NotCopied {
 public:
  virtual ~Schedule() = default;

  /// Advances to the next step's learning rate; call it once after each optimiser step, outside the
  /// function of a recorded step.
  void step();
  int64_t steps() const { return step_; }
  /// The learning rate of step `t`.
  virtual double lr_at(int64_t t) const = 0;

  StateDict state_dict() const;
  void check_state_dict(const StateDict& dict) const;
  void load_state_dict(const StateDict& dict);

 protected:
  /// `kind` is saved with the state; loading it into a schedule of another kind throws.
  explicit Schedule(Optimizer& optimizer, const char* kind = "Schedule");
  double base() const { return base_; }
  /// Sets the first lr. Derived constructors call it last, when lr_at can be called.
  void start();

 private:
  Optimizer& optimizer_;
  const char* const kind_;
  mutable double base_;  // check_state_dict() replaces it temporarily, to call lr_at().
  int64_t step_ = 0;
};

/// A linear rise over `warmup` steps, then half a cosine to `min_lr` over the rest of `total`.
class WarmupCosineLR : public Schedule {
 public:
  WarmupCosineLR(Optimizer& optimizer, int64_t warmup, int64_t total, double min_lr = 0.0);
  double lr_at(int64_t t) const override;

 private:
  int64_t warmup_, total_;
  double min_lr_;
};

/// From the base lr to `min_lr` along half a cosine in `total` steps (Loshchilov and Hutter, 2017).
class CosineLR : public WarmupCosineLR {
 public:
  CosineLR(Optimizer& optimizer, int64_t total, double min_lr = 0.0);
};

/// base * gamma^floor(t / every): a drop every `every` steps.
class StepLR : public Schedule {
 public:
  StepLR(Optimizer& optimizer, int64_t every, double gamma = 0.1);
  double lr_at(int64_t t) const override;

 private:
  int64_t every_;
  double gamma_;
};

}  // namespace brrr::optim
