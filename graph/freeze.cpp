// Frozen steps: replay with the recorded effects, without running the function.
#include <algorithm>
#include <functional>

#include "core/check.h"
#include "graph/core.h"

namespace brrr::graph {

// Whether survivors are held by the call's results and by grad fields only, so that a replay can
// replace them all.
static bool all_holders_known(Session& s, const std::vector<Effects::Gradient>& gradients) {
  std::vector<TensorImpl*>& seen = s.seen;
  seen.clear();
  for (const Tensor* t : s.results) seen.push_back(t->impl());
  for (const Effects::Gradient& g : gradients) seen.push_back(g.leaf.impl()->grad);
  std::erase(seen, nullptr);
  // Sort handles by storage, then by tensor.
  const auto storage_of = [](const TensorImpl* t) -> const Storage* { return t->storage; };
  std::ranges::sort(seen, {}, [](TensorImpl* t) { return std::pair(t->storage, t); });
  for (size_t k = 0; k < s.survivors.size(); ++k) {
    const Storage* const made = s.survivors[k];
    uint32_t objects = s.plan && s.plan->holds(k, made);
    const auto from = std::ranges::lower_bound(seen, made, std::less<>(), storage_of);
    const auto to = std::ranges::upper_bound(seen, made, std::less<>(), storage_of);
    for (auto at = from, next = at; at != to; at = next, ++objects) {
      TensorImpl* const t = *at;
      next = std::find_if(at, to, [&](const TensorImpl* other) { return other != t; });
      if (t->refs.get() != next - at || (t->grad_fn && !t->grad_fn->released)) return false;
    }
    if (from == to || made->refs.get() != objects) return false;
  }
  return true;
}

// A number that distinguishes a storage from earlier and later ones at the same address.
static uint32_t number_of(Storage& s) {
  static std::atomic<uint32_t> numbers{0};
  std::atomic_ref number(s.number);  // Other steps may have the same argument.
  if (uint32_t none = 0; !number.load()) number.compare_exchange_strong(none, ++numbers);
  return number.load();
}

// Records what the next arguments have to match, and releases the references to these ones.
static void record_arguments(Frozen& f, const Tensor* const* args, size_t n) {
  auto& bindings = f.effects.bindings;
  f.entry->arguments.resize(n);
  for (size_t k = 0; k < n; ++k) {
    Entry::Argument& a = f.entry->arguments[k];
    if (!args[k]->defined()) {
      a = {};
      continue;
    }
    const TensorImpl& t = *args[k]->impl();
    uint32_t external = kNone;
    for (uint32_t x = 0; x < bindings.size(); ++x) {
      if (bindings[x].storage.get() == t.storage) external = x;
    }
    // Where the step first uses the storage: an argument that is a window on a captured tensor's
    // memory counts as moved only if that tensor has moved.
    const int64_t base = external == kNone ? t.offset : bindings[external].base;
    const uint32_t number = number_of(*t.storage);
    const bool moved = a.number != number || a.offset + a.base != base;
    const bool moves = a.number && a.external == external && (a.moves || moved);
    a = {.defined = true,
         .cut = t.view == View::Cut,
         .requires_grad = t.requires_grad(),
         .device = t.device,
         .external = external,
         .dtype = t.dtype,
         .sizes = t.size_list(),
         .strides = t.stride_list(),
         .number = number,
         .offset = t.offset,
         .base = base - t.offset,
         .histories = t.storage->histories,
         .moves = moves};
  }
  for (const Entry::Argument& a : f.entry->arguments) {
    if (a.external != kNone) bindings[a.external].storage.reset();
  }
}

// A frozen step would keep using the tensors that the function captures now: refuse if they change.
static void record_captured(Frozen& f) {
  const auto& bindings = f.effects.bindings;
  auto& captured = f.entry->captured;
  const bool known = !captured.empty();
  captured.resize(bindings.size());
  for (size_t x = 0; x < bindings.size(); ++x) {
    if (!bindings[x].storage || bindings[x].storage->gradient) continue;  // Argument, or refused.
    Storage& s = *bindings[x].storage;
    const Entry::Captured now{number_of(s), bindings[x].base, s.histories};
    const auto was = std::exchange(captured[x], now);
    if (known && was.number && (was.number != now.number || was.base != now.base)) {
      f.refusal =
          "a tensor that it captures was another one, or another part of it, in the previous call; "
          "pass it as an argument";
    }
  }
}

// Whether the step accesses an argument's storage outside the argument: then another tensor of the
// step lives there, and a replay would use the next argument's memory for it.
static bool accesses_outside(const Recording& r, const Entry::Argument& a) {
  const Extent touched = r.extent(r.externals[a.external]);
  if (touched.value == kNone) return false;  // No elements are accessed.
  if (numel_of(a.sizes) == 0) return true;
  const auto item = static_cast<int64_t>(itemsize(a.dtype));
  int64_t end = 1 - a.base;
  for (int d = 0; d < a.sizes.size(); ++d) end += (a.sizes[d] - 1) * a.strides[d];
  return touched.low < -a.base * item || touched.high > end * item;
}

// Refuses by the bindings. Checked when a step is to be frozen, and again when an ordinary call has
// replaced the state that it was frozen with.
static void refuse_bindings(Frozen& f) {
  for (const Entry::Argument& a : f.entry->arguments) {
    if (a.external != kNone && accesses_outside(f.entry->recording, a)) {
      f.refusal = "an argument shares its memory with another tensor of the step; pass its clone()";
    }
  }
}

// The first control word that only running the function can determine; the word count if none.
static size_t host_word(const std::vector<Ref<ControlCell>>& cells) {
  const auto only_host = [](const auto& c) { return !c || c->kind == ControlCell::OwnDraw; };
  return static_cast<size_t>(std::ranges::find_if(cells, only_host) - cells.begin());
}
constexpr const char* kHostWord = "";  // A refusal whose text describe_host_word() makes.
static std::string describe_host_word(const Frozen& f) {
  const Recording& r = f.entry->recording;
  const size_t word = host_word(f.effects.cells);
  const Instr& i = *(std::ranges::upper_bound(r.instrs, word, {}, &Instr::control) - 1);
  const std::string op = r.describe(i);
  if (is_host_data(i)) {
    return "it makes a tensor from host memory, or moves one to a device (" + op +
           "); do that before the step, or pass it as an argument";
  }
  if (f.effects.cells[word]) {
    return "it draws from a random stream of its own (" + op + "); make the RngScope outside";
  }
  return "a scalar in it varies (" + op + "); pass it as a tensor";
}

// Records what freeze() needs. Cheap: apart from a loop over the survivors, contents are moved.
void StepCore::remember(const std::shared_ptr<Entry>& e, Session& s, const Tensor* const* args,
                        size_t n) {
  std::lock_guard lock(mutex_);
  Frozen& f = last_;
  f.entry = e;
  f.refusal = s.pass.host_effect();
  f.effects.clear();
  s.pass.release(&f.effects);
  if (!all_holders_known(s, f.effects.gradients)) {
    f.refusal =
        "a tensor that it makes is held by more than its results and grad fields (a "
        "captured handle, or history that detach() would drop)";
  }
  for (const Tensor* t : s.results) {
    const bool made =
        t->defined() && std::ranges::find(s.survivors, t->impl()->storage) != s.survivors.end();
    if (made) {
      uint32_t same = f.effects.gradient(t->impl());
      if (same == kNone && t->impl()->refs.get() > 1) {
        const auto first = std::ranges::find(s.results, t->impl(), &Tensor::impl);
        if (*first != t)
          same = static_cast<uint32_t>(f.effects.gradients.size() + (first - s.results.begin()));
      }
      f.effects.results.push_back({t->impl()->value, t->impl()->view, same});
    }
    if (!made) f.refusal = "a result is undefined, or not made by the step";
    if (made && t->impl()->requires_grad() && !t->impl()->grad_fn) {
      f.refusal = "a result is a leaf that requires grad; set that outside, on what it returns";
    }
  }
  for (const Effects::Gradient& g : f.effects.gradients) {
    const bool foreign = g.leaf.impl()->grad && g.value == kNone && !g.stays;
    if (foreign) f.refusal = "a grad field is set to a tensor from outside";
    const auto is_leaf = [&](const Tensor* t) { return t->impl() == g.leaf.impl(); };
    if (std::any_of(args, args + n, is_leaf))
      f.refusal = "it sets or reads the gradient of an argument";
  }
  if (host_word(f.effects.cells) < f.effects.cells.size()) f.refusal = kHostWord;
  record_arguments(f, args, n);
  record_captured(f);
  // A step that uses such gradients cannot be frozen, and keeping them would keep their memory.
  for (Binding& b : f.effects.bindings) {
    if (!b.storage || !b.storage->gradient) continue;
    f.refusal =
        "it uses a gradient from before the step, which zero_grad() outside it would replace; call "
        "zero_grad() inside, which clears gradients instead of setting them to 0";
    b.storage.reset();
  }
  f.grad_enabled = context.grad_enabled;
  f.autocast = context.autocast;
  f.device = default_device();
  f.epoch = settings_epoch();
  f.sets_rng = s.pass.sets_rng || e->recording.other_stream;
  f.left = rng_state();
  if (is_frozen_) refuse_bindings(f);
  if (f.refusal) {  // These would needlessly keep alive tensors that the function has released.
    f.effects.gradients.clear();
    f.effects.results.clear();
    f.effects.bindings.clear();
  }
}

void StepCore::freeze() {
  BRRR_CHECK(!context.recorder,
             "step.freeze: cannot run inside a graph-mode step; call it between two calls of the "
             "step");
  std::lock_guard lock(mutex_);
  if (options_.mode == Mode::Eager) return;
  BRRR_CHECK(options_.verify_every == 0,
             "step.freeze: verify_every is {}, but frozen steps are not verified; give 0",
             options_.verify_every);
  BRRR_CHECK(last_.entry,
             "step.freeze: call the step at least once before, and its last call must not throw");
  refuse_bindings(last_);
  BRRR_CHECK(!last_.refusal, "step.freeze: this step cannot be frozen: {}",
             last_.refusal == kHostWord ? describe_host_word(last_) : last_.refusal);
  is_frozen_ = true;
}

static bool same_argument(const Entry::Argument& a, const Tensor& t) {
  if (!t.defined() || !a.defined) return t.defined() == a.defined;
  const TensorImpl& x = *t.impl();
  return x.dtype == a.dtype && x.device == a.device && (x.view == View::Cut) == a.cut &&
         x.requires_grad() == a.requires_grad && x.size_list() == a.sizes &&
         x.stride_list() == a.strides;
}

// Puts the arguments into the bindings of a call; false if they do not match the frozen ones.
static bool bind_arguments(const Frozen& f, const Tensor* const* args, size_t n,
                           std::vector<Binding>& bindings) {
  if (n != f.entry->arguments.size()) return false;
  for (size_t k = 0; k < n; ++k) {
    const Entry::Argument& a = f.entry->arguments[k];
    if (!same_argument(a, *args[k])) return false;
    if (a.external == kNone) continue;
    const TensorImpl& t = *args[k]->impl();
    if (t.storage->pass || t.storage->lost || t.requires_grad()) return false;
    // An argument that never changed may also be captured: then a new one needs the function.
    const bool same = a.number == std::atomic_ref(t.storage->number).load() &&
                      a.offset == t.offset && a.histories == t.storage->histories;
    if (!a.moves && !same) return false;
    for (size_t x = 0; x < bindings.size(); ++x) {
      if (x != a.external && bindings[x].storage.get() == t.storage) return false;
    }
    Binding& b = bindings[a.external];
    // An earlier argument may share its external; both must then be the same tensor.
    const int64_t base = t.offset + a.base;
    if (b.storage && (b.storage.get() != t.storage || b.base != base)) return false;
    b = {Ref<Storage>::share(t.storage), base};
  }
  return true;
}

// Applies the frozen effects instead of running the function. Null if the call does not match the
// frozen one: it then runs the function, which is always right.
std::shared_ptr<Entry> StepCore::play(Session& s, const Tensor* const* args, size_t n,
                                      std::vector<Tensor>& results) {
  if (!is_frozen_ || options_.check_numerics) return nullptr;
  std::lock_guard lock(mutex_);
  const Frozen& f = last_;
  if (f.refusal || context.grad_enabled != f.grad_enabled || context.autocast != f.autocast ||
      default_device() != f.device || settings_epoch() != f.epoch) {
    return nullptr;
  }
  // A step that sets the stream must find it as it left it: draws between calls run the function.
  const RngState found = rng_state();
  if (f.sets_rng && (found.seed != f.left.seed || found.draw != f.left.draw)) return nullptr;
  // Whether a backward pass sets a gradient or adds to it depends on whether there is one.
  for (const Effects::Gradient& g : f.effects.gradients) {
    if ((g.leaf.impl()->grad != nullptr) != g.had) return nullptr;
  }
  for (const Effects::Mark& m : f.effects.marks) {
    if (m.cell->value != m.before) return nullptr;
  }
  // A captured tensor has got or lost history in place, which changes where backward goes.
  for (size_t x = 0; x < f.effects.bindings.size(); ++x) {
    const Storage* const captured = f.effects.bindings[x].storage.get();
    if (captured && captured->histories != f.entry->captured[x].histories) return nullptr;
  }
  s.bindings = f.effects.bindings;
  if (!bind_arguments(f, args, n, s.bindings)) {
    s.bindings.clear();
    return nullptr;
  }
  s.entries.assign(1, f.entry);
  s.candidates.assign(1, &f.entry->recording);
  s.pass.begin(s.candidates);
  const Held recorder(context.recorder, &s.pass);
  const Plan* const plan = options_.mode == Mode::Auto ? nullptr : f.entry->built.load();
  s.pass.play(f.effects, s.bindings, results, plan ? plan->safe_to_overwrite() : nullptr);
  last_.left = rng_state();
  return f.entry;
}

}  // namespace brrr::graph
