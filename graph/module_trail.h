#pragma once
// Assigns modules to ops that run outside of all modules: those of backward and of optimisers.

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/op.h"

namespace brrr::graph {

/// Remembers which module last used a storage, or one that it was computed from. An op belongs to
/// the earliest of its operands' modules: a backward op reads what its layer saved and a gradient,
/// which derives from the layers after it. A Key identifies a storage.
template <class Key> class ModuleTrail {
 public:
  /// The module that an op on these storages belongs to; "": none has used any. Stays valid.
  const std::string& near(const std::vector<Key>& storages) const { return *first(storages).path; }
  /// Call when an op has run in module `path`, or in none (""); `made` are new storages.
  void ran(const std::vector<Key>& storages, const std::vector<Key>& made,
           const std::string& path) {
    // A new storage may have the address of an earlier one.
    for (const Key& s : made) last_use_.erase(s);
    const Use use = path.empty() ? first(storages) : Use{at_++, &*paths_.insert(path).first};
    if (use.path->empty()) return;
    if (!path.empty()) {
      for (const Key& s : storages) last_use_[s] = use;
    }
    for (const Key& s : made) last_use_[s] = use;
  }

 private:
  inline static const std::string& none = *new std::string;
  struct Use {
    uint64_t at = 0;
    const std::string* path = &none;  // No copies: they would dominate a profile's memory traffic.
  };
  Use first(const std::vector<Key>& storages) const {
    const Use* found = nullptr;
    for (const Key& s : storages) {
      const auto it = last_use_.find(s);
      if (it != last_use_.end() && (!found || it->second.at < found->at)) found = &it->second;
    }
    return found ? *found : Use{};
  }
  uint64_t at_ = 0;
  std::unordered_map<Key, Use> last_use_;
  std::unordered_set<std::string> paths_;
};

/// The innermost module that contains both: "h.0" for "h.0.attn" and "h.0.mlp".
inline std::string common_module(const std::string& a, const std::string& b) {
  if (a == b || b.empty()) return a;
  const std::string x = a + '.', y = b + '.';
  const auto same = static_cast<size_t>(std::ranges::mismatch(x, y).in1 - x.begin());
  const size_t end = same ? x.rfind('.', same - 1) : 0;
  return end && end != x.npos ? a.substr(0, end) : "several modules";
}

struct CallStorages {
  std::vector<const Storage*> in, all, made;  ///< Read; read or written in place; new results'.
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
