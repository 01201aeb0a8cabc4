#pragma once
// Recordings that do the same: with instructions that run once more, and with joins that need none.

#include <memory>
#include <vector>

#include "graph/recording.h"

namespace brrr::graph {

/// A temporary to make once more for some of those who read it.
struct Anew {
  uint32_t storage;
  std::vector<uint32_t> instrs, users;  ///< Each rising.
  uint32_t before;  ///< Where the instructions are repeated: after all of them, before all users.
};

/// The recording with these changes. Those of one list share what they make: no instruction is
/// repeated twice for them. Storages keep their numbers, new ones follow. Throws where a repeated
/// instruction or a user would see other values than before.
std::unique_ptr<Recording> rewrite(const Recording& r, const std::vector<std::vector<Anew>>& lists);

/// The recording without those joins (OpSpec::joins) whose operands' makers can write them into the
/// result (OpSpec::apart): temporaries that nobody else reads. Null: there are none. Instructions
/// and storages keep their numbers; one that went has no operands.
std::unique_ptr<Recording> write_joined(const Recording& r);

}  // namespace brrr::graph
