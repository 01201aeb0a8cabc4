// Building a plan and replaying it.
#include "graph/host_plan.h"

#include <algorithm>
#include <map>

#include "core/check.h"
#include "graph/walker.h"

namespace brrr::graph {

HostPlan::HostPlan(const Recording& r, const StepOptions& options, StepStats& stats)
    : Plan(r, options, stats) {
  generate_kernels(stats);
  sort_patches();
  needs_undo_ = fallible_after_write();
  find_early_checks();
  for (uint32_t st : r.survivors) first_write_.push_back(memory_.first[st]);
}

HostPlan::~HostPlan() {
  launches_.clear();
  if (module_) backend(DeviceType::CPU).unload(module_);
}

void HostPlan::generate_kernels(StepStats& stats) {
  std::map<std::string, std::string> names;  // Function text -> name: equal kernels are one.
  std::vector<std::string> wanted;
  for (const Group& g : schedule_.groups) {
    Launch& l = launches_.emplace_back();
    if (!g.fused) {
      l.call = bound_call(r_.instrs[g.instrs[0]]);
      wanted.emplace_back();
      continue;
    }
    const KernelText text = generate(r_, g, schedule_);
    l.extent = text.extent;
    l.grain = text.grain;
    l.first_argument = arguments_.size();
    for (const KernelArgument& a : text.arguments) {
      Patch p{arguments_.size(), a, 0};
      if (a.value != kNone) {
        const Value& v = r_.values[a.value];
        p.bytes = v.offset * static_cast<int64_t>(itemsize(v.dtype));
      }
      patches_.push_back(p);
      arguments_.push_back(nullptr);
    }
    const auto [it, fresh] = names.emplace(text.body, fmt::format("brrr_k{}", names.size()));
    if (fresh) source_ += fmt::format("extern \"C\" void {}{}\n", it->second, text.body);
    wanted.push_back(it->second);
  }
  if (source_.empty()) return;
  source_ = "using namespace brrr::vx;\n" + source_;
  const Backend& b = backend(DeviceType::CPU);
  module_ = b.build(source_, report_);
  stats.build_seconds += report_.seconds;
  stats.build_cached = report_.cached;
  for (size_t k = 0; k < launches_.size(); ++k) {
    if (launches_[k].call) continue;
    void* fn = b.symbol(module_, wanted[k].c_str());
    BRRR_CHECK(fn, "graph: the built module lacks {}", wanted[k]);
    launches_[k].fn = reinterpret_cast<KernelFn>(fn);
  }
}

void HostPlan::sort_patches() {
  moving_.clear();
  arena_patches_.clear();
  guests_.clear();
  auto in_arena = [&](uint32_t st) { return memory_.offset[st] >= 0 && memory_.host[st] == kNone; };
  for (const Patch& p : patches_) {
    const uint32_t id = p.from.value;
    (id != kNone && in_arena(r_.values[id].storage) ? arena_patches_ : moving_).push_back(p);
  }
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    if (memory_.host[st] != kNone) guests_.push_back(st);
  }
  arena_ = nullptr;
}

// Once it is known what can fail, temporaries that come after it move into survivors that come
// after them: a survivor may have the memory of an old gradient, which has to stay as it was while
// the step can still fail.
void HostPlan::settle_memory() {
  std::vector<uint32_t> hosts;
  for (size_t k = 0; k < r_.survivors.size(); ++k) {
    if (safe_to_overwrite(k)) hosts.push_back(r_.survivors[k]);
  }
  plan_temporaries(hosts, static_cast<uint32_t>(last_fallible_ + 1));
  sort_patches();
}

// A step must be atomic: if something can still fail after externals have been written, their old
// contents are kept until it is over.
bool HostPlan::fallible_after_write() {
  bool wrote = false, fallible = false;
  std::vector<bool> seen(r_.externals.size());
  for (const Group& g : schedule_.groups) {
    for (uint32_t at : g.instrs) {
      const Instr& i = r_.instrs[at];
      fallible |= wrote && !g.fused && can_fail(r_, i);
      for (int k = 0; k < i.n_out; ++k) {
        const StorageInfo& s = r_.storages[r_.value(r_.out(i)[k]).storage];
        if (s.origin == Origin::External) wrote = seen[s.maker] = true;
      }
    }
  }
  for (uint32_t k = 0; k < seen.size(); ++k) {
    if (seen[k]) written_.push_back(k);
  }
  return fallible;
}

void HostPlan::bind(const std::vector<Binding>& bindings, const int64_t* control,
                    Storage* const* survivors, char* arena) {
  for (size_t k = 0; k < bindings.size(); ++k) {
    const Binding& b = bindings[k];
    bound_[r_.externals[k]]->data =
        static_cast<char*>(b.storage->data) + b.base * static_cast<int64_t>(external_item_[k]);
  }
  for (size_t k = 0; k < r_.survivors.size(); ++k)
    bound_[r_.survivors[k]]->data = survivors[k]->data;
  if (arena != arena_) {
    arena_ = arena;
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      if (memory_.offset[st] < 0 || memory_.host[st] != kNone) continue;
      bound_[st]->data = arena + memory_.offset[st];
    }
    for (const Patch& p : arena_patches_) {
      const uint32_t st = r_.values[p.from.value].storage;
      arguments_[p.argument] = static_cast<char*>(bound_[st]->data) + p.bytes;
    }
  }
  for (uint32_t st : guests_) {
    bound_[st]->data = static_cast<char*>(bound_[memory_.host[st]]->data) + memory_.offset[st];
  }
  for (const Patch& p : moving_) {
    if (p.from.value != kNone) {
      const uint32_t st = r_.values[p.from.value].storage;
      arguments_[p.argument] = static_cast<char*>(bound_[st]->data) + p.bytes;
    } else {
      arguments_[p.argument] =
          const_cast<char*>(reinterpret_cast<const char*>(control + p.from.control));
    }
  }
}

void HostPlan::launch(Launch& l, const int64_t* control) {
  if (l.call) {
    for (const auto& [word, from] : l.call->dynamic) l.call->call.attrs.v[word] = control[from];
    const OpDef& op = *l.call->call.op;
    if (op.check_values && !l.checked_early) op.check_values(l.call->call);
    op.cpu(l.call->call);
  } else if (l.extent <= l.grain) {
    l.fn(arguments_.data() + l.first_argument, 0, l.extent);
  } else {
    char* const* arguments = arguments_.data() + l.first_argument;
    parallel_for(l.extent, l.grain,
                 [&](int64_t begin, int64_t end) { l.fn(arguments, begin, end); });
  }
}

// Value checks of what comes from outside the step, and is not written by it, need not wait for
// their kernels: done first, they can fail while nothing has happened. They read the operands that
// are not floating, or all if there is no such.
void HostPlan::find_early_checks() {
  size_t k = 0;
  for (const Group& g : schedule_.groups) {
    Launch& l = launches_[k++];
    if (!l.call || !l.call->call.op->check_values) continue;
    const Instr& i = r_.instrs[g.instrs[0]];
    bool any = false, outside = true, all_outside = true;
    for (int n = 0; n < i.n_in; ++n) {
      if (r_.in(i)[n] == kNone) continue;
      const Value& v = r_.value(r_.in(i)[n]);
      const StorageInfo& s = r_.storages[v.storage];
      const bool given = s.origin == Origin::External &&
                         std::find(written_.begin(), written_.end(), s.maker) == written_.end();
      all_outside &= given;
      if (is_floating(v.dtype)) continue;
      any = true;
      outside &= given;
    }
    l.checked_early = any ? outside : all_outside;
  }
}

void HostPlan::launch_all(const int64_t* control) {
  if (last_fallible_ != INT64_MAX) [[likely]] {
    for (Launch& l : launches_) launch(l, control);
    return;
  }
  // Shapes are fixed: a kernel that takes no scratch now never will.
  int64_t last = -1;
  for (size_t k = 0; k < launches_.size(); ++k) {
    const uint64_t before = raw_empty_count();
    launch(launches_[k], control);
    const Launch& l = launches_[k];
    const bool checks = l.call && l.call->call.op->check_values && !l.checked_early;
    if (raw_empty_count() != before || checks) last = static_cast<int64_t>(k);
  }
  last_fallible_ = last;
  settle_memory();
}

void HostPlan::run(const std::vector<Binding>& bindings, const int64_t* control,
                   Storage* const* survivors) {
  for (size_t k = 0; k < r_.survivors.size(); ++k) {
    if (!survivors[k]->data) allocate(*survivors[k]);
  }
  // The arena is borrowed for the replay: one piece of memory serves all entries and eager code.
  auto arena = Ref<Storage>::adopt(new_storage(kCPU, memory_.arena_bytes));
  if (memory_.arena_bytes) allocate(*arena);
  bind(bindings, control, survivors, static_cast<char*>(arena->data));
  for (const Launch& l : launches_) {
    if (l.checked_early) l.call->call.op->check_values(l.call->call);
  }
  if (!needs_undo_) return launch_all(control);
  UndoLog undo;
  for (uint32_t k : written_) undo.save(*bindings[k].storage);
  try {
    launch_all(control);
  } catch (...) {
    undo.restore();
    throw;
  }
}

bool HostPlan::may_reuse(const TensorImpl& old, size_t k) {
  return old.storage->refs.get() == 1 && safe_to_overwrite(k);
}

}  // namespace brrr::graph
