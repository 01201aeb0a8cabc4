#pragma once
// Recordings in which instructions run once more.

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

}  // namespace brrr::graph
