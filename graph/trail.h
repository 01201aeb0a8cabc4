#pragma once
// Names for what has no module of its own: the ops of backward and of optimisers.

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/op.h"

namespace brrr::graph {

/// Remembers which module touched a storage last, or one that it was computed from. A Key names a
/// storage.
template <class Key> class ModuleTrail {
 public:
  /// The module that touched one of them last; "" if none did. It stays where it is.
  const std::string& near(const std::vector<Key>& storages) const { return *newest(storages).path; }
  /// An op has run in that module, or in none; `made` are the storages that are new.
  void ran(const std::vector<Key>& storages, const std::vector<Key>& made,
           const std::string& path) {
    // New tensors may have a storage's address that a module's had.
    for (const Key& s : made) touched_.erase(s);
    const Touch touch = path.empty() ? newest(storages) : Touch{at_++, &*paths_.insert(path).first};
    if (touch.path->empty()) return;
    if (!path.empty()) {
      for (const Key& s : storages) touched_[s] = touch;
    }
    for (const Key& s : made) touched_[s] = touch;
  }

 private:
  inline static const std::string none;
  struct Touch {
    uint64_t at = 0;
    const std::string* path = &none;  // Copies would be most of what a profile writes.
  };
  Touch newest(const std::vector<Key>& storages) const {
    const Touch* found = nullptr;
    for (const Key& s : storages) {
      const auto it = touched_.find(s);
      if (it != touched_.end() && (!found || it->second.at > found->at)) found = &it->second;
    }
    return found ? *found : Touch{};
  }
  uint64_t at_ = 0;
  std::unordered_map<Key, Touch> touched_;
  std::unordered_set<std::string> paths_;
};

/// The storages that a call reads; with those that it writes in place; and those of new results.
struct CallStorages {
  std::vector<const Storage*> in, all, made;
  CallStorages() = default;
  explicit CallStorages(const OpCall& c) { set(c); }
  void set(const OpCall& c) {
    in.clear();
    made.clear();
    for (int k = 0; k < c.n_in; ++k) {
      if (c.in[k]) in.push_back(c.in[k]->storage);
    }
    all = in;
    for (int k = 0; !c.op->is_view() && k < c.n_out; ++k) {
      (c.into ? all : made).push_back(c.out[k].impl()->storage);
    }
  }
};

}  // namespace brrr::graph
