// Frozen steps: a replay with the recorded effects, without running the function.
#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "graph/core.h"

namespace brrr::graph {

namespace {

// A survivor may be held by the call's results and by grad fields only: then a replay can hand out
// new ones. `seen` is scratch.
bool holders_known(const Plan* plan, const std::vector<Storage*>& survivors,
                   const ResultList& results, const std::vector<Ref<TensorImpl>>& leaves,
                   std::vector<TensorImpl*>& seen) {
  for (const Storage* s : survivors) {
    uint32_t objects = plan ? plan->holders(s) : 0;
    seen.clear();
    auto count = [&](TensorImpl* t) {
      if (!t || t->storage != s) return;
      if (std::find(seen.begin(), seen.end(), t) == seen.end()) ++objects;
      seen.push_back(t);
    };
    for (const Tensor* t : results) count(t->impl());
    for (const auto& leaf : leaves) count(leaf->grad);
    if (s->refs.get() != objects) return false;
    for (TensorImpl* t : seen) {
      const auto handles = static_cast<uint32_t>(std::count(seen.begin(), seen.end(), t));
      if (t->refs.get() != handles || (t->grad_fn && !t->grad_fn->released)) return false;
    }
  }
  return true;
}

uint32_t value_of(const TensorImpl& t, const std::vector<Storage*>& survivors) {
  const bool made = std::find(survivors.begin(), survivors.end(), t.storage) != survivors.end();
  return made ? t.value : kNone;
}

}  // namespace

static void refuse_bindings(Frozen& f);

// Notes what freeze() would need. Everything but the walk over a few survivors is a move.
void StepCore::remember(const std::shared_ptr<Entry>& e, Session& s, const Tensor* const* args,
                        size_t n) {
  const Recording& r = e->recording;
  s.pass.commit();
  std::lock_guard lock(mutex_);
  Frozen& f = last_;
  f.entry = e;
  f.refusal = nullptr;
  if (!holders_known(s.plan, s.survivors, s.results, s.pass.grad_leaves(), s.seen)) {
    f.refusal =
        "a tensor that it makes is held by more than its results and grad fields (a "
        "captured handle, or history that detach() would drop)";
  }
  f.results.clear();
  for (const Tensor* t : s.results) {
    f.results.push_back(t->defined() ? value_of(*t->impl(), s.survivors) : kNone);
    if (f.results.back() == kNone) f.refusal = "a result is not made by the step";
  }
  f.grads.clear();
  for (const auto& leaf : s.pass.grad_leaves()) {
    const uint32_t id = leaf->grad ? value_of(*leaf->grad, s.survivors) : kNone;
    if (leaf->grad && id == kNone) f.refusal = "a grad field is set to a tensor from outside";
    f.grads.emplace_back(leaf, id);
  }
  f.had_grad = s.pass.had_grad();
  if (s.pass.host_effect()) f.refusal = s.pass.host_effect();
  f.cells.clear();
  for (const ControlWord& w : r.control) f.cells.push_back(w.cell);
  for (const auto& [word, cell] : s.pass.other_cells()) f.cells[word] = cell;
  for (const auto& cell : f.cells) {
    if (!cell) f.refusal = "it makes tensors from host memory, or host numbers in it vary";
  }
  f.control.assign(s.pass.control().begin(), s.pass.control().end());
  const auto& bindings = s.pass.bindings();
  f.written.clear();
  for (const auto& t : s.pass.written()) {
    f.written.push_back(s.pass.external_of(*t));
  }
  f.arguments.clear();
  for (size_t k = 0; k < n; ++k) {
    Frozen::Argument a{kNone, kFloat32, {}, {}};
    if (args[k]->defined()) {
      const TensorImpl& t = *args[k]->impl();
      a.dtype = t.dtype;
      a.sizes = t.size_list();
      a.strides = t.stride_list();
      for (uint32_t x = 0; x < bindings.size(); ++x) {
        if (bindings[x].storage.get() == t.storage) a.external = x;
      }
      if (a.external != kNone && bindings[a.external].base != t.offset) {
        f.refusal = "an argument shares its memory with another tensor of the step";
      }
    }
    f.arguments.push_back(std::move(a));
  }
  f.grad_enabled = context.grad_enabled;
  f.autocast = context.autocast;
  f.epoch = settings_epoch();
  s.pass.release(&f.bindings);
  // Gradients could not be frozen with, and a step that kept them would keep their memory.
  for (Binding& b : f.bindings) {
    if (!b.storage || !b.storage->gradient) continue;
    f.refusal =
        "it uses a gradient from before the step, which zero_grad() outside it would replace; call "
        "zero_grad() inside";
    b.storage.reset();
  }
  // What the arguments were is none of the step's business any more.
  for (const Frozen::Argument& a : f.arguments) {
    if (a.external != kNone) f.bindings[a.external].storage.reset();
  }
  if (is_frozen_) refuse_bindings(f);
}

// Whether the step touches an argument's storage outside the argument: then something else of the
// step lives there, and the next argument would be taken for it.
static bool strays(const Recording& r, const Frozen::Argument& a) {
  auto reach = [](const IntList& sizes, const IntList& strides) {
    int64_t last = 0;
    for (int i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
    return last;
  };
  const int64_t end = reach(a.sizes, a.strides);
  return std::any_of(r.values.begin(), r.values.end(), [&](const Value& v) {
    return v.storage == r.externals[a.external] && v.numel > 0 &&
           (v.offset < 0 || v.offset + reach(v.size_list(), v.stride_list()) > end);
  });
}

// Refuses what the bindings tell. Looked at once a step is to be frozen, and again when an ordinary
// call has replaced what it was frozen with.
static void refuse_bindings(Frozen& f) {
  for (const Frozen::Argument& a : f.arguments) {
    if (a.external != kNone && strays(f.entry->recording, a)) {
      f.refusal = "an argument shares its memory with another tensor of the step";
    }
  }
}

void StepCore::freeze() {
  std::lock_guard lock(mutex_);
  BRRR_CHECK(options_.mode != Mode::Eager, "step.freeze: an eager step has nothing to freeze");
  BRRR_CHECK(options_.verify_every == 0,
             "step.freeze: verify_every is {}, but what is frozen is not verified; give 0",
             options_.verify_every);
  BRRR_CHECK(last_.entry,
             "step.freeze: call the step at least once before, and its last call must not throw");
  refuse_bindings(last_);
  BRRR_CHECK(!last_.refusal, "step.freeze: this step cannot be frozen: {}", last_.refusal);
  is_frozen_ = true;
}

static bool same_argument(const Frozen::Argument& a, const Tensor& t) {
  if (!t.defined()) return a.external == kNone;
  const TensorImpl& x = *t.impl();
  return x.dtype == a.dtype && x.size_list() == a.sizes && x.stride_list() == a.strides;
}

static void fill_control(const Recording& r, const std::vector<Ref<ControlCell>>& cells,
                         std::vector<int64_t>& control) {
  const RngState rng = rng_state();
  for (size_t k = 0; k < r.control.size(); ++k) {
    const ControlCell& cell = *cells[k];
    if (cell.kind == ControlCell::RngSeed) {
      control[k] = static_cast<int64_t>(rng.seed);
    } else if (cell.kind == ControlCell::RngDraw) {
      control[k] = static_cast<int64_t>(rng.draw) + r.control[k].relative;
    } else {
      std::memcpy(&control[k], &cell.value, sizeof(double));
    }
  }
}

// Takes the arguments into the frozen bindings; false if they are not such as were frozen.
static bool bind_arguments(Frozen& f, const Tensor* const* args, size_t n) {
  if (f.refusal || n != f.arguments.size() || context.grad_enabled != f.grad_enabled ||
      context.autocast != f.autocast || settings_epoch() != f.epoch) {
    return false;
  }
  for (size_t k = 0; k < n; ++k) {
    const Frozen::Argument& a = f.arguments[k];
    if (!same_argument(a, *args[k])) return false;
    if (a.external == kNone) continue;
    const TensorImpl& t = *args[k]->impl();
    if (t.storage->pass || t.storage->lost || t.requires_grad()) return false;
    for (size_t x = 0; x < f.bindings.size(); ++x) {
      if (x != a.external && f.bindings[x].storage.get() == t.storage) return false;
    }
    Binding& b = f.bindings[a.external];
    if (b.storage) {  // An earlier argument was the same tensor.
      if (b.storage.get() != t.storage || b.base != t.offset) return false;
      continue;
    }
    t.storage->refs.retain();
    b = {Ref<Storage>::adopt(t.storage), t.offset};
  }
  return true;
}

namespace {

// Arguments are held for the time of a call only.
struct ArgumentScope {
  Frozen& f;
  ~ArgumentScope() {
    for (const Frozen::Argument& a : f.arguments) {
      if (a.external != kNone) f.bindings[a.external].storage.reset();
    }
  }
};

}  // namespace

// Tensor::set_grad for a gradient that is known to fit; no recorder is at work.
static void replace_grad(TensorImpl& leaf, Tensor g) {
  if (g.defined()) g.impl()->storage->gradient = true;
  TensorImpl* old = std::exchange(leaf.grad, g.detach_impl());
  if (old && old->refs.release()) destroy(old);
}

// False when the call is not the frozen one: it then takes the ordinary way, which is always right.
bool StepCore::run_frozen(const Tensor* const* args, size_t n, std::vector<Tensor>& results) {
  results.clear();
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Entry> entry = last_.entry;
  lock.unlock();
  Entry& e = *entry;
  std::lock_guard replaying(e.mutex);  // Before `mutex_`, as everywhere.
  if (!e.plan && (e.failure.empty() || e.calls >= e.retry_at)) build(e);
  lock.lock();
  Frozen& f = last_;
  if (f.entry != entry || options_.check_numerics) return false;
  // What a backward pass does, set a gradient or add to it, depends on there being one.
  for (size_t k = 0; k < f.grads.size(); ++k) {
    if ((f.grads[k].first->grad != nullptr) != f.had_grad[k]) return false;
  }
  const ArgumentScope scope{f};
  if (!bind_arguments(f, args, n) || share_memory(f.bindings)) return false;
  const Recording& r = e.recording;
  auto& made = f.made;
  made.clear();
  f.survivors.clear();
  for (uint32_t st : r.survivors) {
    made.push_back(Ref<Storage>::adopt(new_storage(r.storages[st].device, r.storages[st].bytes)));
    f.survivors.push_back(made.back().get());
  }
  fill_control(r, f.cells, f.control);
  BRRR_CHECK(e.plan || !options_.require_graph, "step: require_graph: {}", e.failure);
  if (!e.plan && !e.unfused) e.unfused = Plan::make_unfused(r);
  if (Plan* const plan = e.plan ? e.plan.get() : e.unfused.get()) {
    for (const auto& [leaf, id] : f.grads) {
      if (id == kNone || !leaf->grad) continue;
      const uint32_t st = r.values[id].storage;
      const auto k = static_cast<size_t>(
          std::lower_bound(r.survivors.begin(), r.survivors.end(), st) - r.survivors.begin());
      f.loans.offer(*plan, *leaf->grad, k, *f.survivors[k]);
    }
    try {
      plan->settle_loans(f.survivors.data());
      plan->run(f.bindings, f.control.data(), f.survivors.data());
    } catch (...) {
      f.loans.take_back();
      throw;
    }
    f.loans.clear();
  } else {
    made = walk(r, f.bindings, f.control);
  }
  if (e.plan) {
    ++stats_.replays;
    ++e.replays;
  } else {
    ++stats_.fallbacks;
    stats_.last_fallback = e.failure;
  }
  ++stats_.calls;
  ++e.calls;
  auto& taken = f.survivors;
  // The first tensor on a survivor takes the reference that it was made with.
  auto tensor = [&](uint32_t id) {
    const Value& v = r.values[id];
    const auto at = std::lower_bound(r.survivors.begin(), r.survivors.end(), v.storage);
    const auto k = static_cast<size_t>(at - r.survivors.begin());
    Storage* s = made[k].detach();
    if (s) {
      taken[k] = s;
    } else {
      s = taken[k];
      s->refs.retain();
    }
    return Tensor(
        Ref<TensorImpl>::adopt(new_impl(s, v.dtype, v.size_list(), v.stride_list(), v.offset)));
  };
  for (const auto& [leaf, id] : f.grads) replace_grad(*leaf, id == kNone ? Tensor() : tensor(id));
  for (uint32_t x : f.written) ++f.bindings[x].storage->version;
  RngState rng = rng_state();
  rng.draw += r.draws;
  set_rng_state(rng);
  for (uint32_t id : f.results) results.push_back(tensor(id));
  made.clear();
  if (e.plan) e.plan->settle();
  return true;
}

}  // namespace brrr::graph
