#pragma once
// The reference walker: runs any recording instruction by instruction with the eager kernels. It
// serves first calls, failed builds, verification and debugging.

#include "graph/pass.h"

namespace brrr::graph {

/// Contents of storages from before a run wrote to them.
class UndoLog {
 public:
  void save(Storage& s);
  void restore() noexcept;

 private:
  std::vector<std::pair<Ref<Storage>, Ref<Storage>>> saved_;
};

/// Runs `r`. `bindings` and `control` are those of a pass that matched it. Returns, for every
/// survivor in order, a storage with its memory. If a kernel throws, externals written so far get
/// their old contents back.
std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control);

}  // namespace brrr::graph
