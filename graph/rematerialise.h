#pragma once
// Recordings that do the same: with joins that need none, and with instructions that run once more,
// where their values are used again, so that these need not be kept.

#include <memory>
#include <vector>

#include "graph/schedule.h"
#include "graph/step.h"

namespace brrr::graph {

/// The recording without those joins (OpSpec::joins) whose operands' makers can write them into the
/// result (OpSpec::apart): temporaries that nobody else reads. Null: there are none. Instructions
/// and storages keep their numbers; one that went has no operands.
std::unique_ptr<Recording> write_joined(const Recording& r);

/// The recording with rows of temporaries where the library's kernels ask for them, of those that
/// all who use them find there. Null: there are none.
std::unique_ptr<Recording> lay_rows(const Recording& r, const Schedule& s);

/// The recording with derivatives that are computed with their functions, of which the operands of
/// those need not be kept. Null: there are none.
std::unique_ptr<Recording> derivatives_ahead(const Recording& r, const Schedule& s);

/// A temporary to make once more for some of those who read it.
struct Anew {
  uint32_t storage;
  std::vector<uint32_t> instrs, users;  ///< Each rising.
  uint32_t before;  ///< Where the instructions are repeated: after all of them, before all users.
};
using Lists = std::vector<std::vector<Anew>>;
/// The recording with these changes. Those of one list share what they make: no instruction is
/// repeated twice for them. Storages keep their numbers, new ones follow. Throws where a repeated
/// instruction or a user would see other values than before.
std::unique_ptr<Recording> rewrite(const Recording& r, const Lists& lists);

/// A recording that does the same with more instructions and less memory, traffic or both.
struct Rematerialised {
  std::shared_ptr<const Recording> recording = nullptr;  ///< Null: it is best as it was.
  Schedule schedule;                                     ///< Of the one or the other.
  size_t instrs = 0;                                     ///< That run again.
  size_t ahead = 0;  ///< Derivatives that are computed with their functions.
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
