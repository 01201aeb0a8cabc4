#pragma once
// StepOptions::check_numerics: finding the op that made the first NaN or infinity.

#include <string>
#include <unordered_map>

#include "core/context.h"
#include "graph/module_trail.h"

namespace brrr::graph {

/// While it lives, each op that this thread runs, eagerly or by the walker, throws brrr::Error if a
/// floating result has a NaN, or an infinity that does not come from a mask.
class CheckNumericsGuard final : public Observer, NotCopied {
 public:
  CheckNumericsGuard() : previous_(context.observer) { context.observer = this; }
  ~CheckNumericsGuard() override { context.observer = previous_; }
  /// Unlinks an observer that ends while guards are stacked on top of it.
  static void forget(const Observer* ended) {
    auto* guard = dynamic_cast<CheckNumericsGuard*>(context.observer);
    while (guard && guard->previous_ != ended) {
      guard = dynamic_cast<CheckNumericsGuard*>(guard->previous_);
    }
    if (guard) guard->previous_ = nullptr;
  }

 private:
  void begins(Device d) override {
    if (previous_) previous_->begins(d);
  }
  void failed() override {
    if (previous_) previous_->failed();
  }
  void ran(const OpCall& call) override;
  void check(const OpCall& call);
  bool is_mask_infinity(const OpCall& call, bool positive) const;
  std::string bad_operands(const OpCall& call) const;
  std::string describe(const OpCall& call) const;

  Observer* previous_;
  std::unordered_map<const Storage*, bool> masks_;  // Storages with mask infinities; whether +inf.
  ModuleTrail<const Storage*> trail_;
  CallStorages storages_;  // Of the current call.
};

}  // namespace brrr::graph
