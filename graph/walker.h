#pragma once
// The reference walker: runs any recording instruction by instruction with the eager kernels. It
// serves first calls, failed builds, verification and debugging.

#include <memory>
#include <vector>

#include "graph/pass.h"

namespace brrr::graph {

/// Contents of storages from before a run wrote to them, where an exception that ends its scope
/// puts them back.
class UndoLog : NotCopied {
 public:
  ~UndoLog();
  /// `aside`: of a GPU's storages in the host's memory, for which it waits.
  void save(Storage& s, bool aside = false);

 private:
  struct Saved {
    Ref<Storage> of, copy;
    std::unique_ptr<char[]> on_host = nullptr;
  };
  std::vector<Saved> saved_;
  int exceptions_ = 0;  // On their way when that was saved.
};

/// Runs `r`. `bindings` and `control` are those of a pass that matched it. Returns, for every
/// survivor in order, a storage with its memory. If a kernel throws, externals written so far get
/// their old contents back; `aside` says where these are kept meanwhile (UndoLog::save).
std::vector<Ref<Storage>> walk(const Recording& r, const std::vector<Binding>& bindings,
                               const std::vector<int64_t>& control, bool aside = false);

}  // namespace brrr::graph
