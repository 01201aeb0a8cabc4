#pragma once
// Transformations to equivalent recordings: cat elision, padded rows, derivatives computed in
// forward, and rematerialisation, which repeats instructions so that values need not be kept.

#include <memory>
#include <vector>

#include "graph/schedule.h"
#include "graph/step.h"

namespace brrr::graph {

/// The recording without those concatenations (OpSpec::joins) whose parts can be written directly
/// into the output by their makers (OpSpec::apart) and have no other reader. Null: there are none.
/// Instructions and storages keep their numbers; an elided instruction has no operands.
std::unique_ptr<Recording> elide_cats(const Recording& r);

/// The recording with the rows of temporaries padded as library kernels ask for, where all kernels
/// that use them can do so. Null: there are none.
std::unique_ptr<Recording> pad_rows(const Recording& r, const Schedule& s);

/// The recording with derivatives computed in forward together with their functions, whose operands
/// then need not be kept. Null: there are none.
std::unique_ptr<Recording> derivatives_ahead(const Recording& r, const Schedule& s);

/// A temporary to recompute for some of its readers.
struct Recomputed {
  uint32_t storage;
  std::vector<uint32_t> instrs, users;  ///< To repeat; to read the copy. Each ascending.
  uint32_t before;  ///< Where `instrs` are repeated: after the original ones, before all users.
};
using Lists = std::vector<std::vector<Recomputed>>;
/// The recording with these changes. Entries of one list share recomputed values: no instruction is
/// repeated twice for them. Storages keep their numbers, new ones follow. Throws if a repeated
/// instruction or a user would see other values than before.
std::unique_ptr<Recording> rewrite(const Recording& r, const Lists& lists);

/// An equivalent recording with more instructions and less memory, traffic or both.
struct Rematerialised {
  std::shared_ptr<const Recording> recording = nullptr;  ///< Null: the original is best.
  Schedule schedule;                                     ///< Of `recording`, or of the original.
  size_t instrs = 0;                                     ///< Instructions that are repeated.
  size_t ahead = 0;  ///< Derivatives that are computed with their functions.
  double bytes = 0;  ///< Memory traffic saved by recomputing in fused kernels.
  /// Arena bytes of all temporaries before and after, without rooms in results' memory and kernels'
  /// scratch memory; 0 if no memory was to be saved.
  size_t arena_before = 0, arena = 0;

  /// The recording to run, where `r` is the original.
  const Recording& of(const Recording& r) const { return recording ? *recording : r; }
};
/// StepOptions::memory_budget of a step that would need `arena` bytes.
size_t budget_bytes(const StepOptions& options, size_t arena);
Rematerialised rematerialise(const Recording& r, const StepOptions& options, const Target& target);

}  // namespace brrr::graph
