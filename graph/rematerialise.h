#pragma once
// Rematerialisation: values that are computed anew where they are used again instead of being kept.

#include <memory>

#include "graph/schedule.h"
#include "graph/step.h"

namespace brrr::graph {

/// A recording that does the same with more instructions and less memory, traffic or both.
struct Rematerialised {
  std::shared_ptr<const Recording> recording = nullptr;  ///< Null: it is best as it was.
  Schedule schedule;                                     ///< Of the one or the other.
  size_t instrs = 0;                                     ///< That run again.
  double bytes = 0;  ///< Of traffic that is saved, by fused kernels.
  /// The arena that temporaries need before and after, results' memory and what kernels take while
  /// they run aside; 0 where nothing was to be saved.
  size_t arena_before = 0, arena = 0;

  /// `r`, whose it is, or what does the same.
  const Recording& of(const Recording& r) const { return recording ? *recording : r; }
};
/// StepOptions::memory_budget of a step that would need `arena` bytes.
size_t budget_bytes(const StepOptions& options, size_t arena);
Rematerialised rematerialise(const Recording& r, const StepOptions& options, const Target& target);

}  // namespace brrr::graph
