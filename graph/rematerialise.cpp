// Rematerialisation: recomputes values to move fewer bytes or to save memory. Both choose by the
// schedule of the unchanged step, where it is known which values pass in registers, and check the
// new schedule: a change that does not pay is dropped. Values are recomputed by the same
// instructions on the same operands, so bits stay the same. Memory is saved to meet memory_budget;
// without one, large values go if that costs next to no time, which less cache traffic gives back.
#include "graph/rematerialise.h"

#include "graph/chooser.h"
#include "graph/cost.h"

namespace brrr::graph {

static double bytes_moved(const Recording& r, const Schedule& s) {
  double bytes = 0;
  for (const Group& g : s.groups)
    bytes += g.fused ? group_bytes(r, s, g) : group_bytes_unfused(r, g);
  return bytes;
}

// Whether a has no more kernels, bytes moved and memory than b.
static bool costs_no_more(const Recording& r, const Rematerialised& a, const Rematerialised& b) {
  return a.schedule.groups.size() <= b.schedule.groups.size() &&
         bytes_moved(a.of(r), a.schedule) <= bytes_moved(b.of(r), b.schedule) &&
         plan_memory(a.of(r), a.schedule).arena_bytes <=
             plan_memory(b.of(r), b.schedule).arena_bytes;
}

constexpr int kMostInVain = 8;   // Consecutive rounds without a gain.
constexpr size_t kMostWork = 2;  // Repeated instructions at most, as a multiple of the step's.
// Without a budget: the part of a step's cost that may be spent, and its kernels per added kernel.
constexpr double kNextToNothing = 1.0 / 128;
constexpr size_t kKernelsForOneMore = 24;

static size_t repeated(const Recording& r) {
  size_t n = 0;
  for (size_t at = 0; at < r.again.size(); ++at) n += r.again[at] && r.live[at];
  return n;
}

// Drops and recomputes values until the arena fits into `budget`, or nothing more may be dropped.
static void save_memory(const Recording& r, Rematerialised& out, size_t budget, Allowance may,
                        const auto& changed) {
  Rematerialised now = out;   // May be no better than `out`: several groups may be at the peak.
  std::set<uint32_t> banned;  // Storages tried before; they keep their numbers.
  int in_vain = 0;
  while (out.arena > budget && in_vain < kMostInVain) {
    const auto excess = static_cast<int64_t>(now.arena - budget);
    const Allowance left = may;
    const Lists lists = less_memory(now.of(r), now.schedule, banned, excess, may);
    if (lists.empty()) break;
    Rematerialised with = changed(now, lists);
    if (repeated(*with.recording) > kMostWork * r.instrs.size()) break;
    with.arena = plan_memory(*with.recording, with.schedule).arena_bytes;
    ++in_vain;
    if (with.arena > now.arena) {
      may = left;
      continue;
    }
    now = std::move(with);
    if (now.arena >= out.arena) continue;
    out = now;
    in_vain = 0;
  }
}

size_t budget_bytes(const StepOptions& options, size_t arena) {
  const double n = options.memory_budget;
  const double bytes = n < 1 ? n * static_cast<double>(arena) : n;
  return static_cast<size_t>(std::min(bytes, 0x1p62));  // Larger doubles might not fit size_t.
}

Rematerialised rematerialise(const Recording& original, const StepOptions& options,
                             const Target& target) {
  const std::shared_ptr<const Recording> elided = options.fuse ? elide_cats(original) : nullptr;
  const Recording& r = elided ? *elided : original;
  const auto scheduled = [&](const Recording& of) {
    Schedule s = make_schedule(of, options.fuse, target);
    s.fast = options.numerics == Numerics::Fast;
    return s;
  };
  Rematerialised out{.recording = elided, .schedule = scheduled(r)};
  const auto changed = [&](const Rematerialised& a, const Lists& lists) {
    Rematerialised b = a;
    b.recording = rewrite(a.of(r), lists);
    b.schedule = scheduled(*b.recording);
    return b;
  };
  if (options.fuse && options.rematerialise) {
    const auto with_fewer_bytes = [&](Rematerialised a) {
      const Lists lists = fewer_bytes(a.of(r), a.schedule);
      if (lists.empty()) return a;
      Rematerialised b = changed(a, lists);
      b.bytes = bytes_moved(a.of(r), a.schedule) - bytes_moved(*b.recording, b.schedule);
      const bool more = b.schedule.groups.size() > a.schedule.groups.size();
      return b.bytes > 0 && !more ? b : a;
    };
    Rematerialised ahead;
    ahead.recording = derivatives_ahead(r, out.schedule);
    out = with_fewer_bytes(std::move(out));
    if (ahead.recording) {
      ahead.ahead = ahead.recording->instrs.size() - r.instrs.size();
      ahead.schedule = scheduled(*ahead.recording);
      ahead = with_fewer_bytes(std::move(ahead));
      if (costs_no_more(r, ahead, out)) out = std::move(ahead);
    }
  }
  const bool asked = options.memory_budget > 0;
  if (asked || options.rematerialise) {
    out.arena = out.arena_before = plan_memory(out.of(r), out.schedule).arena_bytes;
    Allowance may;
    if (!asked) {
      may = {out.schedule.groups.size() / kKernelsForOneMore, target.kernel_bytes,
             step_cost(out.of(r), out.schedule) * kNextToNothing, true};
    }
    save_memory(r, out, budget_bytes(options, out.arena), may, changed);
  }
  out.instrs = out.recording ? repeated(*out.recording) : 0;
  if (target.pads_rows && options.fuse) {
    if (auto padded = pad_rows(out.of(r), out.schedule)) out.recording = std::move(padded);
  }
  return out;
}

}  // namespace brrr::graph
