// The part of a plan that is common to all devices: schedule, memory, operands bound to storages.
#include "graph/plan.h"

#include <algorithm>

#include "core/check.h"
#include "core/context.h"
#include "graph/module_trail.h"
#include "ops/kinds/work.h"

namespace brrr::graph {

// Whether a replay uses storages on the host, or else on a device. Host data that a step moves to
// the device do not count as on the host: their instruction has its result on the device.
static bool uses(const Recording& r, bool host) {
  for (size_t st = 0; st < r.storages.size(); ++st) {
    if (!r.accesses[st].empty() && (r.storages[st].device == kCPU) == host) return true;
  }
  return false;
}

std::unique_ptr<Plan> Plan::make(const Recording& r, const StepOptions& options,
                                 const std::vector<Replaced>& replaced) {
  if (!uses(r, false)) return make_host_plan(r, options);
  const Held products(context.tf32, r.tf32);
  BRRR_CHECK(
      !uses(r, true),
      "the step computes on the CPU and on a GPU, and a replay runs on one device; move what "
      "it needs to the GPU");
  return make_device_plan(r, options, replaced);
}

std::unique_ptr<Plan> Plan::make_unfused(const Recording& r, const StepOptions& options) {
  if (uses(r, false)) return nullptr;
  StepOptions unfused = options;
  unfused.fuse = false;
  return make_host_plan(r, unfused);
}

Plan::Plan(const Recording& r, const StepOptions& options, const Target& target)
    : target_(target),
      rematerialised_(rematerialise(r, options, target)),
      r_(rematerialised_.of(r)),
      schedule_(std::move(rematerialised_.schedule)) {
  counts_.fuse_seconds = seconds_since(begin_);
#ifndef NDEBUG
  verify_schedule(r_, schedule_);
#endif
  bound_.resize(r_.storages.size());
  external_item_.resize(r_.externals.size());
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    const StorageInfo& info = r_.storages[st];
    if (!schedule_.stored[st]) continue;
    bound_[st] = Ref<Storage>::adopt(new_storage(info.device, info.bytes));
    bound_[st]->owned = false;
    bound_[st]->gaps = info.row != 0;
  }
  for (const Value& v : r_.values) {
    const StorageInfo& info = r_.storages[v.storage];
    if (info.origin == Origin::External) external_item_[info.maker] = v.item();
  }
  kernels_ = static_cast<size_t>(std::ranges::count(schedule_.groups, false, &Group::fused));
}

void Plan::reorder(const std::vector<uint32_t>& order) {
  std::vector<KernelNote> noted;
  for (uint32_t g : order) noted.push_back(notes()[g]);
  notes_ = std::move(noted);
  schedule_.reorder(order);
#ifndef NDEBUG
  verify_schedule(r_, schedule_);
#endif
}

void Plan::plan_temporaries(const MemoryRules& rules) {
  const auto t = Clock::now();
  memory_ = plan_memory(r_, schedule_, rules);
  temporaries_.clear();
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    if (memory_.storages[st].offset >= 0) temporaries_.push_back(st);
  }
  counts_.plan_seconds += seconds_since(t);
#ifndef NDEBUG
  verify_memory(r_, schedule_, memory_);
#endif
}

Plan::~Plan() {
  if (module_) built_by_->unload(module_);
}

std::string Plan::named(const Part& part,
                        const std::function<std::string(const std::string&)>& text) {
  const auto [it, fresh] = names_.emplace(text("k"), fmt::format("brrr_k{}", names_.size()));
  if (fresh) {
    source_.kernels.push_back(text(it->second));
    first_users_.push_back(part.instrs[0]);
  }
  return it->second;
}

void Plan::build_source(const std::string& first, const Backend& by) {
  if (source_.kernels.empty()) return;
  source_.shared.insert(0, first);
  built_by_ = &by;
  const auto start = Clock::now();
  module_ = by.build(source_, counts_.build_cached);
  counts_.build_seconds = seconds_since(start);
}

// --- notes for observers -------------------------------------------------------------------------

std::string group_name(const Recording& r, const Group& g) {
  constexpr size_t shown = 6;
  const bool many = g.parts.size() > 1;
  const std::vector<uint32_t>& instrs = many ? g.parts[0].instrs : g.instrs;
  std::string s = many ? fmt::format("{} times", g.parts.size()) : "";
  for (size_t k = 0; k < std::min(instrs.size(), shown); ++k) {
    const Instr& i = r.instrs[instrs[k]];
    s += fmt::format("{}{}{}", s.empty() ? "" : " ", i.op->name, i.into ? "_" : "");
  }
  return instrs.size() > shown ? s + fmt::format(" +{} more", instrs.size() - shown) : s;
}

double group_bytes(const Recording& r, const Schedule& s, const Group& g) {
  double bytes = 0;
  for (const Part& p : g.parts) bytes += static_cast<double>(program_of(r, p, s).program.bytes());
  return bytes;
}

KernelNote Plan::note(const Group& g) const {
  KernelNote n{group_name(r_, g), "", "", {}};
  double most = -1;
  for (uint32_t at : g.instrs) {
    const OpDef& op = *r_.instrs[at].op;
    const Work w = work_of(make_call(r_, r_.instrs[at], bound_)->call);
    n.work.flops += w.flops;
    n.work.bytes += w.bytes;
    if (w.flops > most) {
      most = w.flops;
      n.work.dtype = w.dtype;
    }
    // Of a fused group prefer the kind of an op that is not pointwise.
    if (!*n.kind || !op.pointwise) n.kind = kind_of(op, w);
  }
  if (g.fused) n.work.bytes = group_bytes(r_, schedule_, g);
  return n;
}

const std::vector<KernelNote>& Plan::notes() {
  if (!notes_.empty()) return notes_;
  if (context.observer) context.observer->pause();
  std::vector<KernelNote> all;
  for (const Group& g : schedule_.groups) all.push_back(note(g));
  ModuleTrail<uint32_t> trail;
  for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
    std::vector<uint32_t> used, made;
    r_.each_operand(r_.instrs[at], [&](uint32_t value, bool) {
      const uint32_t storage = r_.value(value).storage;
      const StorageInfo& info = r_.storages[storage];
      (info.origin == Origin::Internal && info.maker == at ? made : used).push_back(storage);
    });
    const std::string& own = r_.paths[r_.instrs[at].path];
    const uint32_t g = schedule_.group_of[at];
    if (g != kNone) {
      const std::string& module = own.empty() ? trail.near(used) : own;
      all[g].module = all[g].module.empty() ? module : common_module(all[g].module, module);
    }
    trail.ran(used, made, own);
  }
  notes_ = std::move(all);
  if (context.observer) context.observer->resume();
  return notes_;
}

}  // namespace brrr::graph
