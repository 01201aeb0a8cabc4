#pragma once
// Names for what has no module of its own: the ops of backward and of optimisers.

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/op.h"

namespace brrr::graph {

/// Remembers which module touched a storage last, or one that it was computed from. Of several the
/// first one says where an op belongs: what backward reads, a gradient beside what its layer kept,
/// comes from that layer and from all that followed it. A Key names a storage.
template <class Key> class ModuleTrail {
 public:
  /// The module they belong to; "" if none has touched any. It stays where it is.
  const std::string& near(const std::vector<Key>& storages) const { return *first(storages).path; }
  /// An op has run in that module, or in none; `made` are the storages that are new.
  void ran(const std::vector<Key>& storages, const std::vector<Key>& made,
           const std::string& path) {
    // New tensors may have a storage's address that a module's had.
    for (const Key& s : made) touched_.erase(s);
    const Touch touch = path.empty() ? first(storages) : Touch{at_++, &*paths_.insert(path).first};
    if (touch.path->empty()) return;
    if (!path.empty()) {
      for (const Key& s : storages) touched_[s] = touch;
    }
    for (const Key& s : made) touched_[s] = touch;
  }

 private:
  inline static const std::string& none = *new std::string;
  struct Touch {
    uint64_t at = 0;
    const std::string* path = &none;  // Copies would be most of what a profile writes.
  };
  Touch first(const std::vector<Key>& storages) const {
    const Touch* found = nullptr;
    for (const Key& s : storages) {
      const auto it = touched_.find(s);
      if (it != touched_.end() && (!found || it->second.at < found->at)) found = &it->second;
    }
    return found ? *found : Touch{};
  }
  uint64_t at_ = 0;
  std::unordered_map<Key, Touch> touched_;
  std::unordered_set<std::string> paths_;
};

/// What holds both modules: "h.0" of "h.0.attn" and "h.0.mlp".
inline std::string common_module(const std::string& a, const std::string& b) {
  if (a == b || b.empty()) return a;
  const std::string x = a + '.', y = b + '.';
  const auto same = static_cast<size_t>(std::ranges::mismatch(x, y).in1 - x.begin());
  const size_t end = same ? x.rfind('.', same - 1) : 0;
  return end && end != x.npos ? a.substr(0, end) : "several modules";
}

/// The storages that a call reads; with those that it writes in place; and those of new results.
struct CallStorages {
  std::vector<const Storage*> in, all, made;
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
