// The comparing half of a pass: matches ops with a recording and answers with placeholders.
#include "graph/pass.h"

#include "core/device.h"

#include <algorithm>

namespace brrr::graph {

Ref<Storage> clone_storage(const Storage& s) {
  auto copy = Ref<Storage>::adopt(new_storage(s.device, s.bytes));
  allocate(*copy);
  if (s.bytes) backend(s.device.type).copy(copy->data, s.data, s.bytes);
  return copy;
}

bool share_memory(const std::vector<Binding>& bindings) {
  using Bytes = std::pair<const char*, const char*>;
  const auto bytes_of = [](const Storage& s) {
    const auto* begin = static_cast<const char*>(s.data);
    return Bytes{begin, begin + s.bytes};
  };
  struct Foreign : std::vector<Bytes> {};
  Foreign& foreign = thread_own<Foreign>();  // So that a replay allocates nothing.
  foreign.clear();
  for (const Binding& b : bindings) {
    const bool ours = !b.storage || b.storage->owned || b.storage->bytes == 0;
    if (!ours) foreign.push_back(bytes_of(*b.storage));
  }
  std::ranges::sort(foreign);
  const auto overlap = [](const Bytes& a, const Bytes& b) { return b.first < a.second; };
  if (std::ranges::adjacent_find(foreign, overlap) != foreign.end()) return true;
  return !foreign.empty() && std::ranges::any_of(bindings, [&](const Binding& b) {
    if (!b.storage || !b.storage->owned || b.storage->bytes == 0) return false;
    const auto [begin, end] = bytes_of(*b.storage);
    const auto after = std::ranges::lower_bound(foreign, end, {}, &Bytes::first);
    return after != foreign.begin() && begin < after[-1].second;
  });
}

// --- lifetime ------------------------------------------------------------------------------------

Pass::~Pass() { abort(); }

void Pass::begin(const std::vector<const Recording*>& candidates, bool watch) {
  candidates_ = candidates;
  watch_ = watch;
  parent_ = nullptr;
  difference_ = {};
  control_.clear();
  host_bytes_.clear();
  host_effect_ = nullptr;
  played_ = false;
  if (by_address_.empty()) by_address_.resize(64, kNone);
  active_ = true;
  thread = this_thread();
  static std::atomic<uint64_t> threads{0};
  static thread_local uint64_t last = ++threads << 40;
  number = ++last;  // Unique among all passes.
  rng_before_ = rng_state();
  drawn_before_ = draws_taken();
  sets_rng = uses_older_tape = false;
  if (!recording_.paths.empty()) recording_ = Recording();
  windows_.clear();
  expect(candidates_.empty() ? nullptr : candidates_[0]);
  if (!expected_) recording_.paths.push_back("");
}

size_t Pass::cursor() const {
  return expected_ ? static_cast<size_t>(next_ - expected_->cues.data()) : 0;
}

void Pass::expect(const Recording* r, size_t cursor) {
  static constexpr Cue none{};
  expected_ = r;
  next_ = r ? r->cues.data() + cursor : &none;
  if (r) make_slots(r->storages.size());
}

void Pass::make_slots(size_t count) {
  if (live_.size() < count) live_.resize(count, nullptr);
  by_slot = live_.data();
}

void Pass::bind(const TensorImpl& t, int64_t relative) {
  if (watch_) [[unlikely]] {
    first_seen_.push_back(t.device == kCPU ? clone_storage(*t.storage) : Ref<Storage>());
  }
  by_address_[slot_of(*t.storage)] = static_cast<uint32_t>(bindings_.size());
  bindings_.push_back({Ref<Storage>::share(t.storage), t.offset - relative});
  if (2 * bindings_.size() <= by_address_.size()) return;
  by_address_.assign(2 * by_address_.size(), kNone);
  for (uint32_t k = 0; k < bindings_.size(); ++k) by_address_[slot_of(*bindings_[k].storage)] = k;
}

// Removes bindings made for a call that then did not match: the last ones first, since no probe
// sequence continues past them.
void Pass::unbind(size_t count) {
  for (; bindings_.size() > count; bindings_.pop_back()) {
    by_address_[slot_of(*bindings_.back().storage)] = kNone;
  }
  if (watch_) first_seen_.resize(count);
}

// The hash table slot of a storage's number, or the free one for it.
size_t Pass::slot_of(const Storage& s) const {
  const size_t mask = by_address_.size() - 1;
  size_t at = reinterpret_cast<uintptr_t>(&s) / sizeof(Storage) & mask;
  while (by_address_[at] != kNone && bindings_[by_address_[at]].storage.get() != &s) {
    at = (at + 1) & mask;
  }
  return at;
}

void Effects::clear() noexcept {
  bindings.clear();
  results.clear();
  gradients.clear();
  written.clear();
  cells.clear();
  marks.clear();
}

void Pass::release(Effects* keep) noexcept {
  if (keep) {
    std::swap(*keep, effects_);
    keep->bindings.swap(bindings_);
  }
  effects_.clear();
  bindings_.clear();
  std::fill(by_address_.begin(), by_address_.end(), kNone);
  first_seen_.clear();
  host_bytes_.clear();
}

void Pass::moved_to(const Recording& r) { expect(&r, r.instrs.size()); }

// --- comparing -----------------------------------------------------------------------------------

// Whether the operand matches as a placeholder, a scalar, or an external that is already bound.
[[gnu::always_inline]] inline bool Pass::match_bound(uint32_t id, const TensorImpl* t) const {
  if (!t) return id == kNone;
  if (t->storage->pass == this) [[likely]]
    return t->value == id;
  if (id == kNone) return false;
  const Value& v = expected_->values[id];
  const StorageInfo& s = expected_->storages[v.storage];
  if (s.origin != Origin::External || s.maker >= bindings_.size()) return false;
  const Binding& b = bindings_[s.maker];
  return b.storage.get() == t->storage && t->offset - b.base == v.offset && v.is_like(*t);
}

bool Pass::match_operand(uint32_t id, const TensorImpl* t) {
  if (match_bound(id, t)) return true;
  if (!t || id == kNone || t->storage->pass || t->storage->lost) return false;
  const Value& v = expected_->values[id];
  const StorageInfo& s = expected_->storages[v.storage];
  if (s.origin != Origin::External || s.maker != bindings_.size() || s.device != t->device ||
      !v.is_like(*t) || external_of(*t->storage) != kNone) {
    return false;
  }
  bind(*t, v.offset);
  return true;
}

[[gnu::always_inline]] inline bool Pass::matches(const Cue& e, const OpCall& c) const {
  if (e.op != c.op || e.form != c.attrs.form() || e.n_in != c.n_in || e.into != c.into) {
    return false;
  }
  for (int w = 0; w < c.attrs.n; ++w) {
    if (e.words[w] != c.attrs.v[w]) return false;
  }
  for (int i = 0; i < e.n_in; ++i) {
    if (!match_bound(e.in[i], c.in[i])) return false;
  }
  return !e.into || match_bound(e.out, c.out[0].impl());
}

Pass::Mismatch Pass::mismatch(const Instr& e, const OpCall& c) {
  const Attrs &a = e.attrs, &b = c.attrs;
  if (e.op != c.op || e.n_in != c.n_in || e.into != c.into) return {Mismatch::Op};
  // The gradient of a row op has results for its weights only if they require grad.
  if (e.n_out != c.n_out) return {Mismatch::Results};
  for (int w = 0; w < std::min(a.n, b.n); ++w) {
    if (a.v[w] != b.v[w] && !(a.dynamic >> w & 1)) return {Mismatch::Word, w};
  }
  if (a.n != b.n || a.kinds != b.kinds || a.dtype != b.dtype || a.device != b.device ||
      (b.dynamic & ~a.dynamic)) {
    return {Mismatch::Attributes};
  }
  const size_t bound = bindings_.size();
  const auto ids = expected_->all(e);
  for (int k = 0; k < c.n_in + (c.into ? c.n_out : 0); ++k) {
    const TensorImpl* const t = operand(c, k);
    if (match_operand(ids[k], t)) continue;
    unbind(bound);
    const bool alike =
        ids[k] != kNone && t && expected_->values[ids[k]].size_list() == t->size_list();
    return {alike ? Mismatch::SameShape : Mismatch::Operand, k};
  }
  return {};
}

// --- answering -----------------------------------------------------------------------------------

[[gnu::always_inline]] inline void Pass::answer(const Cue& e, OpCall& c) {
  if (e.into) return;
  auto* s = static_cast<Storage*>(FreeList<Storage>::take());
  auto* t = static_cast<TensorImpl*>(FreeList<TensorImpl>::take());
  std::memcpy(static_cast<void*>(s), e.storage, sizeof e.storage);
  s->pass = this;
  s->release = nullptr;
  s->lost = nullptr;
  s->gradient = false;
  s->lent = false;
  s->gaps = false;
  s->histories = 0;
  s->early = nullptr;
  static_assert(sizeof(Storage) == 96,
                "set a new field here, too, unless it is set when it is used");
  by_slot[s->slot] = s;
  std::memcpy(static_cast<void*>(t), e.tensor, sizeof e.tensor);
  t->storage = s;
  t->grad_fn = nullptr;
  t->grad = nullptr;
  std::memcpy(t->sizes, e.sizes, sizeof e.sizes);
  std::memcpy(t->strides, e.strides, sizeof e.strides);
  c.out[0] = Tensor(Ref<TensorImpl>::adopt(t));
}

Storage* Pass::placeholder_storage(uint32_t id, const StorageInfo& info) {
  Storage* s = new_storage(info.device, info.bytes);
  s->pass = this;
  s->slot = id;
  make_slots(id + 1);
  live_[id] = s;
  return s;
}

void Pass::record_control(const Instr& e, const OpCall& c) {
  e.attrs.each_dynamic([&](int w) {
    ControlCell* const cell = c.attrs.dynamic >> w & 1 ? c.cells[w] : nullptr;
    effects_.cells.push_back(Ref<ControlCell>::share(cell));
    control_.push_back(c.attrs.v[w]);
  });
}

void Pass::make_placeholders(const Recording& r, const Instr& e, uint32_t index, OpCall& c) {
  if (e.into) return;
  const auto out = r.out(e);
  for (int k = 0; k < e.n_out; ++k) {
    const Value& v = r.values[out[k]];
    const StorageInfo& info = r.storages[v.storage];
    Storage* s = nullptr;
    if (info.origin == Origin::Internal && info.maker == index) {
      s = placeholder_storage(v.storage, info);
    } else {
      const auto in = r.in(e);
      int i = 0;
      while (in[i] == kNone || r.values[in[i]].storage != v.storage) ++i;
      s = c.in[i]->storage;
      s->refs.retain();
    }
    c.out[k] = placeholder(v, out[k], s);
    // Offsets of an external's values are relative to its binding's base.
    if (s->pass != this) c.out[k].impl()->offset += bindings_[external_of(*s)].base;
    if (e.op->is_view()) mark_view(c, k, *c.in[0]);
  }
}

// The fast path makes no call that returns here, so that it needs no stack frame; new externals and
// differences take the tail call of general_op().
void Pass::op(OpCall& c) {
  if (matches(*next_, c) && FreeList<Storage>::ready() && FreeList<TensorImpl>::ready())
      [[likely]] {
    answer(*next_, c);
    ++next_;
  } else {
    general_op(c);
  }
}

void Pass::general_op(OpCall& c) {
  if (c.op->kind == OpKind::View && c.in[0]->storage->pass != this) {
    // A view of an external is not recorded: only the window is compared, where an op uses it, so
    // that a batch sliced from a data set may start elsewhere on every call.
    check_readable(c);
    c.infer();
    make_outputs(c);
    return;
  }
  if (!expected_) return record(c);
  if (cursor() == expected_->instrs.size() || mismatch(expected_->instrs[cursor()], c)) {
    check_readable(c);
    c.infer();  // May throw, which is no difference: the user may catch it and go on.
    if (!switch_candidate(&c)) {
      begin_recording();
      return record(c);
    }
  }
  if (next_->op) {
    answer(*next_, c);
  } else {
    const Instr& e = expected_->instrs[cursor()];
    record_control(e, c);
    make_placeholders(*expected_, e, static_cast<uint32_t>(cursor()), c);
  }
  ++next_;
}

// Switches to a candidate with the same matched prefix that `c` (null: the function's end) matches.
bool Pass::switch_candidate(const OpCall* c) {
  const Recording* from = expected_;
  const size_t at = cursor();
  const auto any = [&](const auto& f) {
    return std::ranges::any_of(candidates_, [&](const Recording* r) {
      const bool same_prefix = r != from && r->instrs.size() >= at &&
                               (at == 0 || r->prefixes[at - 1] == from->prefixes[at - 1]);
      if (!same_prefix) return false;
      expect(r, at);
      return f(*r);
    });
  };
  const bool found = any([&](const Recording& r) {
    return c ? at < r.instrs.size() && !mismatch(r.instrs[at], *c)
             : at == r.instrs.size() && survivors_match(r);
  });
  if (found) return true;
  // For the message: find the candidate that is closest.
  expect(from, at);
  keep_closest_difference(c);
  any([&](const Recording&) { return keep_closest_difference(c), false; });
  expect(from, at);
  return false;
}

bool Pass::survivors_match(const Recording& r) const {
  const auto dead = static_cast<size_t>(std::count(live_.begin(), live_.end(), nullptr));
  if (live_.size() - dead != r.survivors.size()) return false;
  return std::ranges::all_of(r.survivors, [&](uint32_t s) { return s < live_.size() && live_[s]; });
}

int Pass::finish() {
  drop_unreferenced();
  if (expected_) {
    if ((cursor() == expected_->instrs.size() && survivors_match(*expected_)) ||
        switch_candidate(nullptr)) {
      return static_cast<int>(std::ranges::find(candidates_, expected_) - candidates_.begin());
    }
    begin_recording();
  }
  for (size_t k = 0; k < live_.size(); ++k) {
    if (!live_[k]) continue;
    recording_.survivors.push_back(static_cast<uint32_t>(k));
    recording_.gradients.push_back(live_[k]->gradient);
  }
  recording_.draws = rng_state().draw - rng_before_.draw;
  recording_.other_stream = sets_rng || std::ranges::any_of(effects_.cells, [](const auto& cell) {
                              return cell && cell->kind == ControlCell::OwnDraw;
                            });
  recording_.tf32 = allow_tf32();
  recording_.complete();
  return -1;
}

}  // namespace brrr::graph
