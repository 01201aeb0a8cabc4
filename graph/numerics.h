#pragma once
// StepOptions::check_numerics: finding the op that made the first NaN or infinity.

#include <string>
#include <unordered_map>

#include "core/context.h"

namespace brrr::graph {

/// While it lives, whatever this thread runs op by op throws brrr::Error if a floating result is
/// not finite.
class CheckNumericsGuard final : Observer, NotCopied {
 public:
  CheckNumericsGuard() : previous_(context.observer) { context.observer = this; }
  ~CheckNumericsGuard() override { context.observer = previous_; }

 private:
  struct Touch {
    uint64_t at;
    std::string path;
  };
  void ran(const OpCall& call) override;
  void check(const OpCall& call) const;
  std::string describe(const OpCall& call) const;
  void remember(const OpCall& call);

  Observer* previous_;
  uint64_t at_ = 0;
  // Backward's ops have no module: the last one that touched an operand of theirs is named.
  std::unordered_map<const Storage*, Touch> touched_;
};

}  // namespace brrr::graph
