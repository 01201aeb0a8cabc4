#pragma once
// Where the results of a step on a GPU lie.

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/tensor_impl.h"

namespace brrr::graph {

// Memory at one address that a replay writes a result to, and what was handed out of it last. Plans
// of several entries of a step, or of several steps of a model, share those of gradients, each of
// which replaces the other's.
struct Slot : NotCopied {
  Slot(const void* of, Ref<Storage> m) : step(of), memory(std::move(m)) {}
  ~Slot() {
    // The memory is the holder's from now on.
    if (is_held() && handed->lent) own_memory(*handed, std::exchange(memory->data, nullptr));
  }
  bool is_held() const { return handed && handed->refs.get() > 1; }

  const void* const step;  ///< Whose options made it.
  const Ref<Storage> memory;
  Ref<Storage> handed;
  bool of_gradient = false;
  const TensorImpl* leaf = nullptr;  ///< Whose, if that is known; it may be gone.
};

// All there are, for who has lending().
inline std::vector<std::weak_ptr<Slot>>& all_slots() {
  static auto* slots = new std::vector<std::weak_ptr<Slot>>;
  return *slots;
}

inline std::shared_ptr<Slot> make_slot(const void* step, Ref<Storage> memory) {
  auto slot = std::make_shared<Slot>(step, std::move(memory));
  all_slots().push_back(slot);
  return slot;
}

// What there is when a plan is made, to be taken over.
class FreeSlots {
 public:
  explicit FreeSlots(const void* step) {
    std::erase_if(all_slots(), [](const auto& s) { return s.expired(); });
    for (const auto& weak : all_slots()) {
      const auto slot = weak.lock();
      if (!slot) continue;
      if (slot->is_held()) {
        lent_[slot->handed.get()] = slot;
      } else if (slot->of_gradient) {
        if (slot->leaf) of_leaf_[slot->leaf] = slot;
        if (slot->step == step) idle_[slot->memory->bytes].push_back(slot);
      }
    }
  }
  // For what replaces the gradient of the leaf, which nobody else holds; null where there is none.
  // What another step has idle of another leaf would go from one to the other with every call.
  std::shared_ptr<Slot> take(const Storage& old, const TensorImpl* leaf, size_t bytes) {
    const auto lent = lent_.find(&old);
    if (lent != lent_.end() && old.refs.get() == 2 && old.bytes == bytes) {
      return lent_.extract(lent).mapped();
    }
    const auto own = of_leaf_.find(leaf);
    if (own != of_leaf_.end() && own->second->memory->bytes == bytes &&
        taken_.insert(own->second.get()).second) {
      return own->second;
    }
    auto& idle = idle_[bytes];
    while (!idle.empty()) {
      const auto slot = std::move(idle.back());
      idle.pop_back();
      if (taken_.insert(slot.get()).second) return slot;
    }
    return nullptr;
  }

 private:
  std::unordered_map<const Storage*, std::shared_ptr<Slot>> lent_;
  std::unordered_map<const TensorImpl*, std::shared_ptr<Slot>> of_leaf_;
  std::unordered_map<size_t, std::vector<std::shared_ptr<Slot>>> idle_;
  std::unordered_set<const Slot*> taken_;  // Of those of the latter two.
};

}  // namespace brrr::graph
