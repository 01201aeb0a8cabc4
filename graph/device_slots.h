#pragma once
// Where the results of a step on a GPU lie.

#include <memory>
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
  explicit FreeSlots(const void* step) : step_(step) {
    std::erase_if(all_slots(), [](const auto& s) { return s.expired(); });
    for (const auto& weak : all_slots()) all_.push_back(weak.lock());
  }
  // For what replaces the gradient of the leaf, which nobody else holds; null where there is none.
  // What another step has idle of another leaf would go from one to the other with every call.
  std::shared_ptr<Slot> take(const Storage& old, const TensorImpl* leaf, size_t bytes) {
    const auto lent = [&](const Slot& s) { return s.handed.get() == &old && old.refs.get() == 2; };
    const auto idle = [](const Slot& s) { return s.of_gradient && !s.is_held(); };
    const auto own = [&](const Slot& s) { return idle(s) && s.leaf == leaf; };
    const auto like = [&](const Slot& s) { return idle(s) && s.step == step_; };
    auto slot = find(bytes, lent);
    if (!slot) slot = find(bytes, own);
    return slot ? slot : find(bytes, like);
  }

 private:
  // The last of them, which is none from then on.
  std::shared_ptr<Slot> find(size_t bytes, const auto& is) {
    for (auto slot = all_.rbegin(); slot != all_.rend(); ++slot) {
      if (*slot && (*slot)->memory->bytes == bytes && is(**slot)) return std::move(*slot);
    }
    return nullptr;
  }

  const void* const step_;
  std::vector<std::shared_ptr<Slot>> all_;  // Null: taken.
};

}  // namespace brrr::graph
