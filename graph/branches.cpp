#include "graph/branches.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace brrr::graph {

namespace {

// Beside what takes longer, which fills a GPU, others only come later.
constexpr double kMostFlops = 2e8, kMostBytes = 16e6;
constexpr uint32_t kFarthest = 8;   // That a group moves: what it makes lives so much longer.
constexpr double kLeast = 1;        // Microseconds that are worth a branch.
constexpr double kMostQueued = 20;  // Microseconds of work that waits beside, and its memory.

// About what a kernel takes on a GPU; only how kernels compare matters. A launch of a graph is 1.2
// microseconds, and small kernels reach a fraction of what the GPU can.
double microseconds(const Work& w) { return 1.2 + std::max(w.flops / 1e7, w.bytes / 1.5e6); }

// Whether it may be beside others. Library calls but for products take memory of the pool, which a
// capture cannot have for two at once; what looks at values says what it finds in its turn.
bool may_move(const Recording& r, const Group& g, const KernelNote& n) {
  const bool looks = std::ranges::any_of(
      g.instrs, [&](uint32_t at) { return r.instrs[at].op->check_values != nullptr; });
  const bool product = r.instrs[g.instrs[0]].op->kind == OpKind::Library &&
                       std::string_view(n.kind) == "contraction";
  return (g.fused || product) && !looks && n.work.bytes > 0 && n.work.flops < kMostFlops &&
         n.work.bytes < kMostBytes;
}

// What kernels need of each other, in the order of a schedule.
struct Needs {
  std::vector<std::vector<uint32_t>> by;  // By group: those behind it that need it to be over.
  std::vector<double> takes, tail;        // Microseconds, alone and with all that waits for it.
  std::vector<uint8_t> moves;             // By group: it may be beside others.

  Needs(const Recording& r, const Schedule& s, const std::vector<KernelNote>& notes)
      : by(notes.size()) {
    for (const auto& list : r.accesses) {
      for (const Access& b : list) {
        for (const Access& a : std::span(list.data(), &b)) {
          const uint32_t g = s.group_of[a.instr], h = s.group_of[b.instr];
          if (g != h && r.conflict(a, b)) by[std::min(g, h)].push_back(std::max(g, h));
        }
      }
    }
    for (auto& list : by) distinct(list);
    for (size_t g = 0; g < notes.size(); ++g) {
      takes.push_back(microseconds(notes[g].work));
      moves.push_back(may_move(r, s.groups[g], notes[g]));
    }
    tail = takes;
    for (size_t g = tail.size(); g-- > 0;) {
      for (uint32_t h : by[g]) tail[g] = std::max(tail[g], takes[g] + tail[h]);
    }
  }
  // How many groups there are if none needs it.
  uint32_t first(uint32_t g) const {
    return by[g].empty() ? static_cast<uint32_t>(by.size()) : by[g].front();
  }
};

bool comes_after(const Recording& r, const Use& x, const Use& y) {
  if (!(x.write || y.write) || x.end <= y.begin || y.end <= x.begin) return false;
  const bool one = x.storage != kNone && x.storage == y.storage;
  return !one || r.conflict({0, x.value, x.write}, {0, y.value, y.write});
}

}  // namespace

std::vector<uint32_t> order_for_branches(const Recording& r, const Schedule& s,
                                         const std::vector<KernelNote>& notes) {
  const Needs needs(r, s, notes);
  std::vector<uint32_t> order(notes.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto goes_first = [&](uint32_t h, uint32_t g) {
    return needs.moves[h] && needs.tail[h] < needs.tail[g] &&
           !std::ranges::binary_search(needs.by[g], h);
  };
  for (size_t k = 1; k < order.size(); ++k) {
    for (size_t to = k; to > 0 && k - to < kFarthest; --to) {
      if (!goes_first(order[to], order[to - 1])) break;
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
  const Needs needs(r, s, notes);
  // When the two queues will have done their work, and, by group: what begins when in the first
  // one, when it is over in the second, and when what it needs of that is there.
  double now = 0, beside = 0;
  std::vector<double> begins(n), over(n), needed(size_t{n} + 1);
  for (uint32_t g = 0; g < n; ++g) {
    begins[g] = now = std::max(now, needed[g]);
    const uint32_t first = needs.first(g);
    const double start = std::max(now, beside), takes = needs.takes[g];
    double meanwhile = 0;  // Of what waits for nothing less.
    for (uint32_t h = g + 1; h < first && meanwhile < 2 * kMostQueued; ++h) {
      if (needs.tail[h] >= needs.tail[g]) meanwhile += needs.takes[h];
    }
    const double saved = std::min(takes, meanwhile - (start - now));
    b.beside[g] = needs.moves[g] && saved > kLeast && start - now < kMostQueued;
    if (!b.beside[g]) {
      now += takes;
      continue;
    }
    ++b.count;
    over[g] = beside = start + takes;
    needed[first] = std::max(needed[first], beside);
  }
  for (uint32_t g = 0; g < n; ++g) {
    if (!b.beside[g]) continue;
    uint32_t& until = b.until[g];
    while (until + 1 < needs.first(g) && begins[until + 1] < over[g]) ++until;
  }
  return b;
}

std::vector<uint32_t> find_awaits(const Recording& r, const Branches& b,
                                  const std::vector<std::vector<Use>>& uses) {
  std::vector<uint32_t> awaits(uses.size(), kNone), running;
  const auto after = [&](uint32_t g, uint32_t h) {
    return std::ranges::any_of(uses[g], [&](const Use& y) {
      return std::ranges::any_of(uses[h], [&](const Use& x) { return comes_after(r, x, y); });
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
    running.erase(running.begin(), last.base());  // Those before it are over as well.
  }
  return awaits;
}

}  // namespace brrr::graph
