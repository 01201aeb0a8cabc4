// Fused groups that became one kernel each because they began apart: a * 2 and b * 3 share nothing,
// but their sum reads both. A group moves to the place of one that reads its results, or that one
// to its place, if nothing in between stands in the way; then they share a kernel, and what passes
// from one to the other a register.
#include <algorithm>

#include "graph/schedule.h"

namespace brrr::graph {

namespace {

class Merger {
 public:
  Merger(const Recording& r, Schedule& s, const Target& target)
      : r_(r), target_(target), s_(s), groups_(s.groups) {}

  void run() {
    for (uint32_t b = 0; b < groups_.size(); ++b) {
      while (groups_[b].fused && merge_with_a_producer(b)) {}
    }
    std::erase_if(groups_, [](const Group& g) { return g.instrs.empty(); });
    s_.number_groups(r_.instrs.size());
  }

 private:
  uint32_t group(const Access& a) const { return s_.group_of[a.instr]; }

  // The storages that a group uses, each once.
  std::vector<uint32_t> storages(const Group& g) const {
    std::vector<uint32_t> list;
    for (uint32_t at : g.instrs) {
      r_.each_operand(r_.instrs[at],
                      [&](uint32_t value, bool) { list.push_back(r_.value(value).storage); });
    }
    return distinct(list);
  }

  // The last group before b that wrote this value.
  uint32_t producer(uint32_t value, uint32_t b) const {
    uint32_t last = kNone;
    for (const Access& x : r_.accesses[r_.value(value).storage]) {
      if (!x.write || group(x) >= b || !groups_[group(x)].fused) continue;
      if (last != kNone && group(x) <= last) continue;
      if (r_.value(x.value).same_elements(r_.value(value))) last = group(x);
    }
    return last;
  }

  bool merge_with_a_producer(uint32_t b) {
    std::vector<uint32_t> tried;
    for (uint32_t at : groups_[b].instrs) {
      const Instr& i = r_.instrs[at];
      for (int k = 0; k < i.n_in; ++k) {
        if (r_.in(i)[k] == kNone) continue;
        const uint32_t a = producer(r_.in(i)[k], b);
        if (a == kNone || std::find(tried.begin(), tried.end(), a) != tried.end()) continue;
        if (merge(a, b)) return true;
        tried.push_back(a);
      }
    }
    return false;
  }

  bool merge(uint32_t a, uint32_t b) {
    Domain domain;
    if (!same_domain(a, b, domain) || !register_passing(a, b, domain) ||
        !kernel_size(r_, s_, a, b).allowed(domain.space.size(), target_)) {
      return false;
    }
    // A write that moved before something that can fail would have to be undone if it does.
    const bool late = std::any_of(groups_[b].instrs.begin(), groups_[b].instrs.end(),
                                  [&](uint32_t at) { return writes_external(r_, r_.instrs[at]); });
    const bool down = can_move(a, a, b);
    if (!down && (late || !can_move(b, a, b))) return false;
    down ? move(a, b) : move(b, a);
    groups_[down ? b : a].domain = domain;
    return true;
  }

  // One domain for the instructions of both.
  bool same_domain(uint32_t a, uint32_t b, Domain& domain) const {
    std::vector<uint32_t> all = groups_[a].instrs;
    domain = groups_[a].domain;
    return std::all_of(groups_[b].instrs.begin(), groups_[b].instrs.end(), [&](uint32_t at) {
      const bool joins = join(r_, all, domain, at);
      all.push_back(at);
      return joins;
    });
  }

  // What one of them writes and the other uses can be passed on.
  bool register_passing(uint32_t a, uint32_t b, const Domain& domain) const {
    bool same = true;
    for (uint32_t st : storages(groups_[a])) {
      for (const Access& x : r_.accesses[st]) {
        for (const Access& y : r_.accesses[st]) {
          if (group(x) != a || group(y) != b || !(x.write || y.write)) continue;
          same = same && passes(r_, x, y, domain);
        }
      }
    }
    return same;
  }

  // Whether `g`, which is a or b, may pass what lies between them: nothing there depends on it, or
  // it on that, and no more bytes are alive there than before.
  bool can_move(uint32_t g, uint32_t a, uint32_t b) const {
    int64_t growth = 0;
    for (uint32_t st : storages(groups_[g])) {
      bool writes = false, between = false, written_between = false;
      uint32_t first = kNone, last = 0;  // Of the other groups that use it.
      for (const Access& x : r_.accesses[st]) {
        const uint32_t at = group(x);
        if (at == g) {
          writes |= x.write;
          continue;
        }
        first = std::min(first, at);
        last = std::max(last, at);
        between |= at > a && at < b;
        written_between |= at > a && at < b && x.write;
      }
      if (written_between || (writes && between)) return false;
      if (r_.lasting[st] || first == kNone) continue;
      const bool alive = g == a ? last >= b : first <= a;
      const bool then = g == a ? first < b : last > a;
      growth += (static_cast<int64_t>(then) - alive) * static_cast<int64_t>(r_.storages[st].bytes);
    }
    return growth <= kLittleMemory || adjacent(a, b);
  }

  bool adjacent(uint32_t a, uint32_t b) const {
    return std::all_of(groups_.begin() + a + 1, groups_.begin() + b,
                       [](const Group& g) { return g.instrs.empty(); });
  }

  void move(uint32_t from, uint32_t to) {
    Group &x = groups_[from], &y = groups_[to];
    for (uint32_t at : x.instrs) s_.group_of[at] = to;
    y.instrs.insert(y.instrs.end(), x.instrs.begin(), x.instrs.end());
    std::sort(y.instrs.begin(), y.instrs.end());
    x.instrs.clear();
    x.fused = false;
  }

  const Recording& r_;
  const Target& target_;
  Schedule& s_;
  std::vector<Group>& groups_;
};

}  // namespace

void merge_groups(const Recording& r, Schedule& s, const Target& target) {
  Merger(r, s, target).run();
}

}  // namespace brrr::graph
