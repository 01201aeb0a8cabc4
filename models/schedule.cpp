#include "models/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/moved.h"

namespace brrr::optim {

Schedule::Schedule(Optimizer& optimizer, const char* kind)
    : optimizer_(optimizer), kind_(kind), base_(optimizer.lr()) {}

void Schedule::start() { optimizer_.set_lr(lr_at(step_)); }

void Schedule::step() {
  optimizer_.set_lr(lr_at(step_ + 1));
  ++step_;
}

StateDict Schedule::state_dict() const {
  return {{"base_lr", number(base_)}, {"step", number(step_)}, {kind_, number(int64_t{1})}};
}

void Schedule::check_state_dict(const StateDict& dict) const {
  StateDict whole = dict;
  if (dict.size() == 2) whole.emplace(kind_, number(int64_t{1}));  // Older files lack it.
  check_same_values("Schedule::load_state_dict", "schedule", state_dict(), whole, {});
  const double base = dict.at("base_lr").item<double>();
  const int64_t step = dict.at("step").item<int64_t>();
  // The bound leaves room to count further steps.
  BRRR_CHECK(
      std::isfinite(base) && base >= 0 && step >= 0 && step <= INT64_MAX / 2,
      "Schedule::load_state_dict: base_lr {} or step {} is negative, not finite or too large", base,
      step);
  const Held saved(base_, base);
  check_number("Schedule::load_state_dict", "lr", lr_at(step));
}

void Schedule::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  base_ = dict.at("base_lr").item<double>();
  step_ = dict.at("step").item<int64_t>();
  start();
}

WarmupCosineLR::WarmupCosineLR(Optimizer& o, int64_t warmup, int64_t total, double min_lr)
    : Schedule(o, "WarmupCosineLR"), warmup_(warmup), total_(total), min_lr_(min_lr) {
  BRRR_CHECK(warmup >= 0, "WarmupCosineLR: warmup must not be negative, got {}", warmup);
  BRRR_CHECK(total > warmup, "WarmupCosineLR: total must exceed warmup, got warmup {} and total {}",
             warmup, total);
  check_number("WarmupCosineLR", "min_lr", min_lr);
  start();
}

double WarmupCosineLR::lr_at(int64_t t) const {
  if (t < warmup_) return base() * static_cast<double>(t + 1) / static_cast<double>(warmup_);
  const int64_t total = total_ - warmup_;
  const double x = static_cast<double>(std::min(t - warmup_, total)) / static_cast<double>(total);
  return min_lr_ + 0.5 * (base() - min_lr_) * (1.0 + std::cos(std::numbers::pi * x));
}

static int64_t checked(int64_t total, double min_lr) {
  BRRR_CHECK(total > 0, "CosineLR: total must be positive, got {}", total);
  check_number("CosineLR", "min_lr", min_lr);
  return total;
}

CosineLR::CosineLR(Optimizer& o, int64_t total, double min_lr)
    : WarmupCosineLR(o, 0, checked(total, min_lr), min_lr) {}

StepLR::StepLR(Optimizer& o, int64_t every, double gamma)
    : Schedule(o, "StepLR"), every_(every), gamma_(gamma) {
  BRRR_CHECK(every > 0, "StepLR: every must be positive, got {}", every);
  BRRR_CHECK(std::isfinite(gamma) && gamma > 0, "StepLR: gamma must be positive, got {}", gamma);
  start();
}

double StepLR::lr_at(int64_t t) const {
  return base() * std::pow(gamma_, static_cast<double>(t / every_));
}

}  // namespace brrr::optim
