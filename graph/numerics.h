#pragma once
// StepOptions::check_numerics: finding the op that made the first NaN or infinity.

#include <string>
#include <unordered_map>

#include "core/context.h"
#include "graph/trail.h"

namespace brrr::graph {

/// While it lives, whatever this thread runs op by op throws brrr::Error if a floating result has a
/// NaN, or an infinity that is no mask's.
class CheckNumericsGuard final : public Observer, NotCopied {
 public:
  CheckNumericsGuard() : previous_(context.observer) { context.observer = this; }
  ~CheckNumericsGuard() override { context.observer = previous_; }
  /// An observer that ends while guards of steps look on before it.
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
  bool masked(const OpCall& call, bool above) const;
  std::string bad_operands(const OpCall& call) const;
  std::string describe(const OpCall& call) const;

  Observer* previous_;
  std::unordered_map<const Storage*, bool> masks_;  // What holds infinities; whether +inf.
  ModuleTrail<const Storage*> trail_;
  CallStorages touched_;  // By the call at hand.
};

}  // namespace brrr::graph
