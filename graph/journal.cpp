// The journal of a pass: its changes of outside metadata, kept until the step has run, or undone if
// it throws; and their repetition by a frozen step, without the function.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "graph/pass.h"

namespace brrr::graph {

void Pass::forget_changes() noexcept {
  changes_.clear();
  flagged_.clear();
  cells_.clear();
  consumed_nodes_.clear();
}

uint32_t Effects::gradient(const TensorImpl* t) const {
  if (!t || t->refs.get() == 1) return kNone;
  const auto at =
      std::ranges::find_if(gradients, [&](const Gradient& g) { return g.leaf.impl()->grad == t; });
  return at == gradients.end() ? kNone : static_cast<uint32_t>(at - gradients.begin());
}

// Whether the call has drawn at the recorded positions of the random stream, relative to its start.
bool Pass::draws_in_turn() const {
  const RngState now = rng_state();
  bool same = now.seed == rng_before_.seed && now.draw == rng_before_.draw + expected_->draws;
  for (size_t k = 0; k < effects_.cells.size(); ++k) {
    const ControlCell* const cell = effects_.cells[k].get();
    if (!cell || cell->kind != ControlCell::RngDraw) continue;
    same &= control_[k] == static_cast<int64_t>(rng_before_.draw) + expected_->control[k];
  }
  return same;
}

void Pass::collect_effects() {
  leaves_.clear();
  met_gradients_.clear();
  for (const Change& c : changes_) {
    if (c.field == Field::Grad && leaves_.insert(c.tensor.get())) {
      const TensorImpl* now = c.tensor->grad;
      const bool made = now && now->storage->pass == this;
      const bool again = now && now->refs.get() > 1 && !met_gradients_.insert(now);
      effects_.gradients.push_back({Tensor(c.tensor), made ? now->value : kNone,
                                    static_cast<bool>(c.grad), made ? now->view : View::No,
                                    again ? effects_.gradient(now) : kNone});
    }
    if (c.field == Field::Version) effects_.written.push_back(external_of(*c.storage));
    if (c.field == Field::History)
      host_effect_ = "it attaches autograd history to a tensor from outside";
    if (c.field == Field::RequiresGrad && c.flags != c.tensor->flags) {
      host_effect_ = "it changes whether a tensor from outside requires grad";
    }
  }
  for (const Change& c : changes_) {  // After the gradients that are replaced, found above.
    if (c.field != Field::HasGrad || !leaves_.insert(c.tensor.get())) continue;
    effects_.gradients.push_back({.leaf = Tensor(c.tensor), .had = true, .stays = true});
  }
  if ((sets_rng || expected_->other_stream) && !draws_in_turn())
    host_effect_ = "it seeds or moves the random stream itself, or did so when it was recorded";
  if (uses_older_tape) host_effect_ = "it runs backward through a tape from before the step";
  if (!cells_.empty()) leaves_.clear();
  // Held by more than the journal; else the module was made by the step and is gone.
  const auto is_held = [&](const Ref<ControlCell>& cell) {
    const auto own = std::ranges::count(cells_, cell, [](const auto& c) { return c.first; });
    return cell->refs.get() > static_cast<uint32_t>(own);
  };
  for (const auto& [cell, before] : cells_) {
    const bool first = leaves_.insert(cell.get());
    if (cell->kind == ControlCell::Mark) {
      if (first) effects_.marks.push_back({cell, before, cell->value});
    } else if (cell->kind != ControlCell::Mode) {
      host_effect_ = "it changes a learning rate or another control value itself";
    } else if (first && cell->value != before && is_held(cell)) {
      host_effect_ =
          "it left a module in another mode (train, eval) than it found it in; call it once more, "
          "or switch outside";
    }
  }
}

void Pass::find_replaced(std::vector<Replaced>& list) const {
  list.clear();
  const std::vector<uint32_t>& all = expected_->survivors;
  for (const Change& c : changes_) {
    const TensorImpl* const now = c.field == Field::Grad && c.grad ? c.tensor->grad : nullptr;
    if (!now || c.grad->refs.get() != 1 || now->storage->pass != this) continue;
    // The storage is a survivor, since it is alive; survivors ascend.
    const auto at = std::ranges::lower_bound(all, now->storage->slot) - all.begin();
    list.push_back({c.grad.get(), static_cast<size_t>(at), c.tensor.get()});
  }
}

void Pass::commit() noexcept {
  for (uint32_t x : effects_.written) {
    if (played_) ++bindings_[x].storage->version;
  }
  end([this] {
    for (uint32_t survivor : expected_->survivors) {  // finish() checked that no other is alive.
      if (Storage* s = std::exchange(live_[survivor], nullptr)) forget(*s);
    }
  });
  for (const auto& n : consumed_nodes_) release_node(*n);
  active_ = false;
  forget_changes();
}

// Keeps the old gradient as the new one if they would be indistinguishable. Making, journalling and
// releasing gradients would take most of the time of a frozen call of small kernels.
bool Pass::keep_gradient(TensorImpl* old, uint32_t id, View view, const std::vector<bool>* safe) {
  if (!old || !safe || id == kNone) return false;
  const Value& v = expected_->values[id];
  const auto& survivors = expected_->survivors;
  const auto at = std::lower_bound(survivors.begin(), survivors.end(), v.storage);
  Storage& s = *old->storage;
  const bool same = old->view == view && old->offset == v.offset && v.is_like(*old) &&
                    s.bytes == expected_->storages[v.storage].bytes;
  const bool alone = old->refs.get() == 1 && s.refs.get() == 1 && s.owned && s.data && !s.pass &&
                     !s.number && !old->requires_grad();
  const bool kept =
      same && alone && !live_[v.storage] && (*safe)[static_cast<size_t>(at - survivors.begin())];
  if (kept) live_[v.storage] = &s;
  return kept;
}

void Pass::play(const Effects& e, std::vector<Binding>& bindings, std::vector<Tensor>& results,
                const std::vector<bool>* safe) {
  const Recording& r = *expected_;
  moved_to(r);
  played_ = true;
  effects_.written = e.written;
  rng_before_ = take_draws(r.draws);
  bindings_.swap(bindings);
  for (size_t k = 0; k < r.control.size(); ++k) {
    const ControlCell& cell = *e.cells[k];
    int64_t& word = control_.emplace_back();
    if (cell.kind == ControlCell::RngSeed) {
      word = static_cast<int64_t>(rng_before_.seed);
    } else if (cell.kind == ControlCell::RngDraw) {
      word = static_cast<int64_t>(rng_before_.draw) + r.control[k];
    } else {
      std::memcpy(&word, &cell.value, sizeof(double));
    }
  }
  auto tensor = [&](uint32_t id, View view) {
    const Value& v = r.values[id];
    Storage* s = live_[v.storage];
    s ? s->refs.retain() : void(s = placeholder_storage(v.storage, r.storages[v.storage]));
    Tensor t = placeholder(v, id, s);
    if ((t.impl()->view = view) != View::No) s->views.retain();
    return t;
  };
  const auto made = [&](uint32_t id, View view, uint32_t same) {
    if (same == kNone) return id == kNone ? Tensor() : tensor(id, view);
    const size_t n = e.gradients.size();
    return same < n ? e.gradients[same].leaf.grad() : results[same - n];
  };
  for (const auto& [leaf, id, had, view, same, stays] : e.gradients) {
    if (stays || (same == kNone && keep_gradient(leaf.impl()->grad, id, view, safe))) continue;
    leaf.set_grad(made(id, view, same));
  }
  for (const auto& [cell, before, after] : e.marks) {
    if (before != after) set_control(*cell, after);
  }
  for (const auto& [id, view, same] : e.results) results.push_back(made(id, view, same));
}

void Pass::abort() noexcept {
  if (!std::exchange(active_, false)) return;
  for (auto it = changes_.rbegin(); it != changes_.rend(); ++it) {
    TensorImpl* t = it->tensor.get();
    switch (it->field) {
      case Field::Grad:
        it->grad = Ref<TensorImpl>::adopt(std::exchange(t->grad, it->grad.detach()));
        break;
      case Field::HasGrad:
        break;
      case Field::RequiresGrad:
        t->flags = it->flags;
        break;
      case Field::History:
        it->grad_fn = Ref<Node>::adopt(std::exchange(t->grad_fn, it->grad_fn.detach()));
        t->flags = it->flags;
        t->output = it->output;
        break;
      case Field::Version:
        it->storage->version = it->version;
        break;
    }
  }
  for (auto it = cells_.rbegin(); it != cells_.rend(); ++it) it->first->value = it->second;
  for (const auto& n : consumed_nodes_) n->released = false;
  sets_rng ? set_rng_state(rng_before_)
           : return_draws(rng_before_.draw, draws_taken() - drawn_before_);
  forget_changes();
  const Recording& r = expected_ ? *expected_ : recording_;
  end([&] {
    for (size_t k = 0; k < live_.size(); ++k) {
      Storage* s = std::exchange(live_[k], nullptr);
      if (!s || s->pass != this) continue;  // A gradient that stayed is no placeholder.
      s->lost = r.instrs[r.storages[k].maker].op->name;
      forget(*s);
    }
  });
  live_.clear();
  expect(nullptr);
  recording_ = Recording();
  release(nullptr);
}

void Pass::journal(TensorImpl& t, Field f) {
  if (f == Field::Version) {
    Storage* const s = t.storage;
    return changes_.push_back({f, {}, {}, {}, 0, 0, s->version, Ref<Storage>::share(s)});
  }
  // State that the step itself has set need not be restored, and the journal would keep it alive
  // beyond the step.
  const bool of_grad = f == Field::Grad || f == Field::HasGrad;
  if (of_grad && t.grad && t.grad->storage->pass == this) return;
  if (f == Field::History && t.grad_fn && t.grad_fn->recorder_number == number) return;
  if (f == Field::RequiresGrad && !flagged_.insert(&t)) return;  // The first value counts.
  changes_.push_back({f, Ref<TensorImpl>::share(&t),
                      Ref<TensorImpl>::share(f == Field::Grad ? t.grad : nullptr),
                      Ref<Node>::share(f == Field::History ? t.grad_fn : nullptr), t.flags,
                      t.output, 0, Ref<Storage>()});
}

// Drops changes of tensors that only the journal still holds: leaves that the function made of
// outside memory (detach().set_requires_grad()), and what they hold, do not outlive the step.
void Pass::drop_unreferenced() {
  const auto seldom = [](const Change& c) {
    return c.field == Field::RequiresGrad || c.field == Field::History;
  };
  // Repeat, since a dropped tensor may have been another one's last holder.
  for (bool more = true; std::exchange(more, false);) {
    if (std::ranges::none_of(changes_, seldom)) return;
    std::unordered_map<const TensorImpl*, uint32_t> held;  // References from the journal.
    for (const Change& c : changes_) ++held[c.tensor.get()];
    AddressSet unseen;
    for (const Change& c : changes_) {
      const bool alone = seldom(c) && c.tensor->refs.get() == held[c.tensor.get()];
      if (alone) more |= unseen.insert(c.tensor.get());
    }
    std::erase_if(changes_, [&](const Change& c) { return unseen.contains(c.tensor.get()); });
  }
}

// Counts views of `s` held, directly or indirectly, by the journal alone: eager mode frees them.
uint32_t Pass::journalled_views(const Storage& s) {
  std::unordered_map<const TensorImpl*, uint32_t> tensors;
  std::unordered_map<const Node*, uint32_t> nodes;
  std::vector<const Node*> gone;
  uint32_t views = 0;
  const auto node = [&](const Node* n) {
    if (n && ++nodes[n] == n->refs.get()) gone.push_back(n);
  };
  const auto tensor = [&](const TensorImpl* t) {
    for (; t && ++tensors[t] == t->refs.get(); t = t->grad) {
      views += t->storage == &s && t->view != View::No;
      node(t->grad_fn);
    }
  };
  for (const auto& n : consumed_nodes_) {  // In eager mode, consumed nodes would hold nothing.
    nodes[n.get()] = UINT32_MAX / 2;
    gone.push_back(n.get());
  }
  for (const Change& c : changes_) {
    tensor(c.tensor.get());
    tensor(c.grad.get());
    node(c.grad_fn.get());
  }
  while (!gone.empty()) {
    const Node& n = *gone.back();
    gone.pop_back();
    for (int i = 0; i < n.n_in; ++i) {
      if (n.op->saves_inputs) tensor(n.in[i].saved);
      tensor(n.in[i].edge.leaf);
      node(n.in[i].edge.node);
    }
    for (int k = 0; n.op->saves_outputs && k < n.n_out; ++k) tensor(n.out[k].saved);
  }
  return views;
}

void Pass::journal(Node& node) {
  node.released = true;
  consumed_nodes_.push_back(Ref<Node>::share(&node));
}

void Pass::journal(ControlCell& cell) {
  cells_.emplace_back(Ref<ControlCell>::share(&cell), cell.value);
}

}  // namespace brrr::graph
