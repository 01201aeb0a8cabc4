#pragma once
// The reference walker: runs any recording instruction by instruction with the eager kernels. It
// serves first calls on a GPU, failed builds, verification and debugging.

#include <memory>
#include <vector>

#include "graph/pass.h"

namespace brrr::graph {

/// Keeps the contents of storages from before a run writes to them; an exception that leaves the
/// log's scope restores them.
class UndoLog : NotCopied {
 public:
  ~UndoLog();
  /// `aside`: copies GPU storages to host memory, synchronously.
  void save(Storage& s, bool aside = false);

 private:
  struct Saved {
    Ref<Storage> of, copy;
    std::unique_ptr<char[]> on_host = nullptr;
  };
  std::vector<Saved> saved_;
  int exceptions_ = 0;  // Uncaught ones at the last save().
};

/// Runs `r`. `bindings` and `control` are those of a pass that matched it. Returns, for every
/// survivor in order, a storage with its memory. If a kernel throws, externals written so far get
/// their old contents back; `aside` says where those are kept (UndoLog::save).
std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control, bool aside = false);

}  // namespace brrr::graph
