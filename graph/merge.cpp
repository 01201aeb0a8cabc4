// Fused groups that became one kernel each because they began apart: a * 2 and b * 3 share nothing,
// but their sum reads both. A group moves to the place of one that reads its results, or that one
// to its place, if nothing in between stands in the way; then they share a kernel, and what passes
// from one to the other a register.
#include <algorithm>

#include "graph/schedule.h"

namespace brrr::graph {

namespace {

struct Access {
  uint32_t value, group;
  bool write;
};

class Merger {
 public:
  Merger(const Recording& r, Schedule& s, const Target& target)
      : r_(r), target_(target), groups_(s.groups), accesses_(r.storages.size()) {
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      each_operand(groups_[g], [&](uint32_t value, bool write) {
        accesses_[r.value(value).storage].push_back({value, g, write});
      });
    }
    lasting_.resize(r.storages.size());
    for (uint32_t st : r.survivors) lasting_[st] = true;
    for (uint32_t st : r.externals) lasting_[st] = true;
  }

  void run() {
    for (uint32_t b = 0; b < groups_.size(); ++b) {
      while (groups_[b].fused && merge_with_a_producer(b)) {}
    }
    std::erase_if(groups_, [](const Group& g) { return g.instrs.empty(); });
  }

 private:
  template <class F> void each_operand(const Group& g, const F& f) const {
    for (uint32_t at : g.instrs) {
      const Instr& i = r_.instrs[at];
      for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
        if (r_.operands[k] != kNone) f(r_.operands[k], k >= i.first_out);
      }
    }
  }

  // The storages that a group uses, each once.
  std::vector<uint32_t> storages(const Group& g) const {
    std::vector<uint32_t> list;
    each_operand(g, [&](uint32_t value, bool) { list.push_back(r_.value(value).storage); });
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return list;
  }

  // The last group before b that wrote this value.
  uint32_t producer(uint32_t value, uint32_t b) const {
    uint32_t last = kNone;
    for (const Access& x : accesses_[r_.value(value).storage]) {
      if (!x.write || x.group >= b || !groups_[x.group].fused) continue;
      if (last != kNone && x.group <= last) continue;
      if (r_.value(x.value).same_elements(r_.value(value))) last = x.group;
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
    if (!same_space(a, b) || !register_passing(a, b) || !fits(a, b)) return false;
    // A write that moved before something that can fail would have to be undone if it does.
    const bool late = std::any_of(groups_[b].instrs.begin(), groups_[b].instrs.end(),
                                  [&](uint32_t at) { return writes_external(r_, r_.instrs[at]); });
    const bool down = can_move(a, a, b);
    if (!down && (late || !can_move(b, a, b))) return false;
    down ? move(a, b) : move(b, a);
    return true;
  }

  bool all_flat(const Group& g) const {
    return std::all_of(g.instrs.begin(), g.instrs.end(),
                       [&](uint32_t at) { return flat(r_, r_.instrs[at]); });
  }

  bool same_space(uint32_t a, uint32_t b) const {
    const Group &x = groups_[a], &y = groups_[b];
    return x.space == y.space ||
           (numel_of(x.space) == numel_of(y.space) && (all_flat(x) || all_flat(y)));
  }

  // What one of them writes and the other uses are the same elements in the same order.
  bool register_passing(uint32_t a, uint32_t b) const {
    bool same = true;
    each_operand(groups_[a], [&](uint32_t x, bool x_writes) {
      const Value& v = r_.value(x);
      each_operand(groups_[b], [&](uint32_t y, bool y_writes) {
        const Value& w = r_.value(y);
        same &= v.storage != w.storage || !(x_writes || y_writes) || v.same_elements(w);
      });
    });
    return same;
  }

  bool fits(uint32_t a, uint32_t b) const {
    Group both = groups_[a];
    both.instrs.insert(both.instrs.end(), groups_[b].instrs.begin(), groups_[b].instrs.end());
    KernelSize size{.instrs = both.instrs.size()};
    for (uint32_t st : storages(both)) {
      std::vector<uint32_t> values;
      bool others = lasting_[st];
      for (const Access& x : accesses_[st]) {
        x.group == a || x.group == b ? values.push_back(x.value) : void(others = true);
      }
      std::sort(values.begin(), values.end());
      values.erase(std::unique(values.begin(), values.end()), values.end());
      if (others) size.in_memory += values.size();
    }
    for (uint32_t at : both.instrs) {
      const Instr& i = r_.instrs[at];
      for (int k = 0; k < i.n_in; ++k) size.numbers += r_.in(i)[k] == kNone;
      size.polynomials += polynomials(r_, i);
    }
    return size.allowed(std::max(groups_[a].space.size(), groups_[b].space.size()), target_);
  }

  // Whether `g`, which is a or b, may pass what lies between them: nothing there depends on it, or
  // it on that, and no more bytes are alive there than before.
  bool can_move(uint32_t g, uint32_t a, uint32_t b) const {
    int64_t growth = 0;
    for (uint32_t st : storages(groups_[g])) {
      bool writes = false, between = false, written_between = false;
      uint32_t first = kNone, last = 0;  // Of the other groups that use it.
      for (const Access& x : accesses_[st]) {
        if (x.group == g) {
          writes |= x.write;
          continue;
        }
        first = std::min(first, x.group);
        last = std::max(last, x.group);
        between |= x.group > a && x.group < b;
        written_between |= x.group > a && x.group < b && x.write;
      }
      if (written_between || (writes && between)) return false;
      if (lasting_[st] || first == kNone) continue;
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
    for (uint32_t st : storages(x)) {
      for (Access& access : accesses_[st]) {
        if (access.group == from) access.group = to;
      }
    }
    if (all_flat(y)) y.space = x.space;
    y.instrs.insert(y.instrs.end(), x.instrs.begin(), x.instrs.end());
    std::sort(y.instrs.begin(), y.instrs.end());
    x.instrs.clear();
    x.fused = false;
  }

  const Recording& r_;
  const Target& target_;
  std::vector<Group>& groups_;
  std::vector<std::vector<Access>> accesses_;  // By storage.
  std::vector<bool> lasting_;                  // By storage: it is used after the step.
};

}  // namespace

void merge_groups(const Recording& r, Schedule& s, const Target& target) {
  Merger(r, s, target).run();
}

}  // namespace brrr::graph
