#include "graph/branches.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace brrr::graph {

namespace {

// Limits of side-branch kernels: a larger one fills the GPU and would only delay the others.
constexpr double kMaxFlops = 2e8, kMaxBytes = 16e6;
constexpr uint32_t kMaxMove = 8;     // Places that a group moves up: its results live longer.
constexpr double kMinSavedUs = 1;    // To be worth the side branch.
constexpr double kMaxQueuedUs = 20;  // Work waiting on the side branch, which keeps its memory.

// A rough estimate of a kernel's duration on a GPU; only ratios matter. Within a graph a launch
// takes 1.2 microseconds, and small kernels reach a fraction of the GPU's peak.
double microseconds(const Work& w) { return 1.2 + std::max(w.flops / 1e7, w.bytes / 1.5e6); }

// Whether a group may be on the side branch. Library calls other than products take memory from the
// pool, which a capture cannot serve for two branches; checks of values have to report in order.
bool may_move(const Recording& r, const Group& g, const KernelNote& n) {
  const bool looks = std::ranges::any_of(
      g.instrs, [&](uint32_t at) { return r.instrs[at].op->check_values != nullptr; });
  const bool product = r.instrs[g.instrs[0]].op->kind == OpKind::Library &&
                       std::string_view(n.kind) == "contraction";
  return (g.fused || product) && !looks && n.work.bytes > 0 && n.work.flops < kMaxFlops &&
         n.work.bytes < kMaxBytes;
}

// Dependences between the groups of a schedule, and their estimated durations. All by group.
struct Dependences {
  std::vector<std::vector<uint32_t>> dependents;  // Later groups that depend on it, rising.
  std::vector<double> duration, tail;  // Microseconds: alone, with its longest dependent chain.
  std::vector<uint8_t> movable;        // It may be on the side branch.

  Dependences(const Recording& r, const Schedule& s, const std::vector<KernelNote>& notes)
      : dependents(notes.size()) {
    for (const auto& list : r.accesses) {
      for (const Access& b : list) {
        for (const Access& a : std::span(list.data(), &b)) {
          const uint32_t g = s.group_of[a.instr], h = s.group_of[b.instr];
          if (g != h && r.conflict(a, b)) dependents[std::min(g, h)].push_back(std::max(g, h));
        }
      }
    }
    for (auto& list : dependents) distinct(list);
    for (size_t g = 0; g < notes.size(); ++g) {
      duration.push_back(microseconds(notes[g].work));
      movable.push_back(may_move(r, s.groups[g], notes[g]));
    }
    tail = duration;
    for (size_t g = tail.size(); g-- > 0;) {
      for (uint32_t h : dependents[g]) tail[g] = std::max(tail[g], duration[g] + tail[h]);
    }
  }
  // The number of groups if none depends on it.
  uint32_t first_dependent(uint32_t g) const {
    return dependents[g].empty() ? static_cast<uint32_t>(dependents.size()) : dependents[g].front();
  }
};

bool conflicts(const Recording& r, const Use& x, const Use& y) {
  if (!(x.write || y.write) || x.end <= y.begin || y.end <= x.begin) return false;
  const bool one = x.storage != kNone && x.storage == y.storage;
  return !one || r.conflict({0, x.value, x.write}, {0, y.value, y.write});
}

}  // namespace

std::vector<uint32_t> order_for_branches(const Recording& r, const Schedule& s,
                                         const std::vector<KernelNote>& notes) {
  const Dependences deps(r, s, notes);
  std::vector<uint32_t> order(notes.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto should_precede = [&](uint32_t h, uint32_t g) {
    return deps.movable[h] && deps.tail[h] < deps.tail[g] &&
           !std::ranges::binary_search(deps.dependents[g], h);
  };
  for (size_t k = 1; k < order.size(); ++k) {
    for (size_t to = k; to > 0 && k - to < kMaxMove; --to) {
      if (!should_precede(order[to], order[to - 1])) break;
      std::swap(order[to - 1], order[to]);
    }
  }
  return order;
}

Branches find_branches(const Recording& r, const Schedule& s,
                       const std::vector<KernelNote>& notes) {
  const auto n = static_cast<uint32_t>(s.groups.size());
  Branches b{std::vector<uint8_t>(n), std::vector<uint32_t>(n)};
  std::iota(b.until.begin(), b.until.end(), 0u);
  const Dependences deps(r, s, notes);
  // Simulated times: when the two branches finish their work so far, and, by group, when it begins
  // on the main branch, ends on the side branch, and has the side branch's results that it needs.
  double now = 0, beside = 0;
  std::vector<double> begins(n), ends(n), needed(size_t{n} + 1);
  for (uint32_t g = 0; g < n; ++g) {
    begins[g] = now = std::max(now, needed[g]);
    const uint32_t first = deps.first_dependent(g);
    const double start = std::max(now, beside), duration = deps.duration[g];
    double meanwhile = 0;  // Work before its first dependent with no shorter tail.
    for (uint32_t h = g + 1; h < first && meanwhile < 2 * kMaxQueuedUs; ++h) {
      if (deps.tail[h] >= deps.tail[g]) meanwhile += deps.duration[h];
    }
    const double saved = std::min(duration, meanwhile - (start - now));
    b.beside[g] = deps.movable[g] && saved > kMinSavedUs && start - now < kMaxQueuedUs;
    if (!b.beside[g]) {
      now += duration;
      continue;
    }
    ++b.count;
    ends[g] = beside = start + duration;
    needed[first] = std::max(needed[first], beside);
  }
  for (uint32_t g = 0; g < n; ++g) {
    if (!b.beside[g]) continue;
    uint32_t& until = b.until[g];
    while (until + 1 < deps.first_dependent(g) && begins[until + 1] < ends[g]) ++until;
  }
  return b;
}

std::vector<uint32_t> find_awaits(const Recording& r, const Branches& b,
                                  const std::vector<std::vector<Use>>& uses) {
  std::vector<uint32_t> awaits(uses.size(), kNone), running;
  const auto after = [&](uint32_t g, uint32_t h) {
    return std::ranges::any_of(uses[g], [&](const Use& y) {
      return std::ranges::any_of(uses[h], [&](const Use& x) { return conflicts(r, x, y); });
    });
  };
  for (uint32_t g = 0; g < uses.size(); ++g) {
    if (b.beside[g]) {
      running.push_back(g);
      continue;
    }
    const auto last =
        std::find_if(running.rbegin(), running.rend(), [&](uint32_t h) { return after(g, h); });
    if (last == running.rend()) continue;
    awaits[g] = *last;
    running.erase(running.begin(), last.base());  // Those before it have ended, too.
  }
  return awaits;
}

}  // namespace brrr::graph
