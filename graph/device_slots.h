#pragma once
// Memory at fixed addresses for the results of GPU plans.

#include <memory>
#include <utility>
#include <vector>

#include "core/tensor_impl.h"

namespace brrr::graph {

// Memory that replays write a result to, and the storage that it was lent to last. The plans of a
// step's entries, or of several steps of a model, share the slots of gradients, since the gradient
// of each replaces that of the others.
struct Slot : NotCopied {
  Slot(const void* of, Ref<Storage> m) : step(of), memory(std::move(m)) {}
  ~Slot() {
    // From now on the memory belongs to its holder.
    if (is_held() && lent_to->lent) own_memory(*lent_to, std::exchange(memory->data, nullptr));
  }
  bool is_held() const { return lent_to && lent_to->refs.get() > 1; }

  const void* const step;  ///< The options of the step that made it; tells steps apart.
  const Ref<Storage> memory;
  Ref<Storage> lent_to;
  bool of_gradient = false;
  const TensorImpl* leaf = nullptr;  ///< Whose gradient, if known; may dangle.
};

// All slots; guarded by lent_memory_mutex().
inline std::vector<std::weak_ptr<Slot>>& all_slots() {
  static auto* slots = new std::vector<std::weak_ptr<Slot>>;
  return *slots;
}

inline std::shared_ptr<Slot> make_slot(const void* step, Ref<Storage> memory) {
  auto slot = std::make_shared<Slot>(step, std::move(memory));
  all_slots().push_back(slot);
  return slot;
}

// The slots that exist when a plan is made, which it may take over.
class FreeSlots {
 public:
  explicit FreeSlots(const void* step) : step_(step) {
    std::erase_if(all_slots(), [](const auto& s) { return s.expired(); });
    for (const auto& weak : all_slots()) all_.push_back(weak.lock());
  }
  // A slot for what replaces `old`, the gradient of `leaf`; null if none fits. Not an idle one that
  // another step made for another leaf: it would change hands with every call.
  std::shared_ptr<Slot> take(const Storage& old, const TensorImpl* leaf, size_t bytes) {
    const auto lent = [&](const Slot& s) { return s.lent_to.get() == &old && old.refs.get() == 2; };
    const auto idle = [](const Slot& s) { return s.of_gradient && !s.is_held(); };
    const auto of_leaf = [&](const Slot& s) { return idle(s) && s.leaf == leaf; };
    const auto of_step = [&](const Slot& s) { return idle(s) && s.step == step_; };
    auto slot = find(bytes, lent);
    if (!slot) slot = find(bytes, of_leaf);
    return slot ? slot : find(bytes, of_step);
  }

 private:
  // Takes the last that matches out of the list.
  std::shared_ptr<Slot> find(size_t bytes, const auto& matches) {
    for (auto slot = all_.rbegin(); slot != all_.rend(); ++slot) {
      if (*slot && (*slot)->memory->bytes == bytes && matches(**slot)) return std::move(*slot);
    }
    return nullptr;
  }

  const void* const step_;
  std::vector<std::shared_ptr<Slot>> all_;  // Null: taken.
};

}  // namespace brrr::graph
