#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace brrr {

/// A set of addresses for thousands of lookups per step. It keeps its memory when it is cleared.
class AddressSet {
 public:
  /// Returns whether it is new.
  bool insert(const void* p) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    const bool added = !std::exchange(slots_[find(p)], p);
    count_ += added;
    return added;
  }
  bool contains(const void* p) const { return count_ && slots_[find(p)]; }
  void clear() {
    slots_.assign(slots_.size(), nullptr);
    count_ = 0;
  }

 private:
  // The slot that holds p or is to hold it: linear probing from a multiplicative hash (Knuth, "The
  // Art of Computer Programming", 6.4).
  size_t find(const void* p) const {
    const size_t mask = slots_.size() - 1;
    size_t at = (reinterpret_cast<uintptr_t>(p) * 0x9e3779b97f4a7c15u) >> 32 & mask;
    while (slots_[at] && slots_[at] != p) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    const std::vector<const void*> old =
        std::exchange(slots_, std::vector<const void*>(slots_.empty() ? 64 : 2 * slots_.size()));
    for (const void* p : old) {
      if (p) slots_[find(p)] = p;
    }
  }

  std::vector<const void*> slots_;  // Null: empty. The size is a power of two.
  size_t count_ = 0;
};

}  // namespace brrr
