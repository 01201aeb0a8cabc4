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
  Merger(const Recording& r, Schedule& s) : r_(r), groups_(s.groups), accesses_(r.storages.size()) {
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      for (uint32_t at : groups_[g].instrs) note(at, g);
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

  void note(uint32_t at, uint32_t g) {
    const Group one{true, {at}, {}};
    each_operand(one, [&](uint32_t value, bool write) {
      accesses_[r_.value(value).storage].push_back({value, g, write});
    });
  }

  // The storages that a group uses, each once.
  std::vector<uint32_t> storages(const Group& g) const {
    std::vector<uint32_t> list;
    each_operand(g, [&](uint32_t value, bool) { list.push_back(r_.value(value).storage); });
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return list;
  }

  bool merge_with_a_producer(uint32_t b) {
    for (uint32_t st : storages(groups_[b])) {
      for (const Access& x : accesses_[st]) {
        if (x.write && x.group < b && groups_[x.group].fused && merge(x.group, b)) return true;
      }
    }
    return false;
  }

  bool merge(uint32_t a, uint32_t b) {
    if (!same_space(a, b) || !register_passing(a, b) || !fits(a, b)) return false;
    // A write that moved before something that can fail would have to be undone if it does.
    const bool late = std::any_of(groups_[b].instrs.begin(), groups_[b].instrs.end(),
                                  [&](uint32_t at) { return writes_external(r_, r_.instrs[at]); });
    if (can_move(a, a, b)) {
      move(a, b);
    } else if (!late && can_move(b, a, b)) {
      move(b, a);
    } else {
      return false;
    }
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
    for (uint32_t st : storages(groups_[a])) {
      for (const Access& x : accesses_[st]) {
        if (x.group != a) continue;
        for (const Access& y : accesses_[st]) {
          if (y.group != b || !(x.write || y.write)) continue;
          if (!r_.value(x.value).same_elements(r_.value(y.value))) return false;
        }
      }
    }
    return true;
  }

  bool fits(uint32_t a, uint32_t b) const {
    Group both = groups_[a];
    both.instrs.insert(both.instrs.end(), groups_[b].instrs.begin(), groups_[b].instrs.end());
    size_t in_memory = 0, numbers = 0;
    for (uint32_t st : storages(both)) {
      std::vector<uint32_t> values;
      bool others = lasting_[st];
      for (const Access& x : accesses_[st]) {
        x.group == a || x.group == b ? values.push_back(x.value) : void(others = true);
      }
      std::sort(values.begin(), values.end());
      values.erase(std::unique(values.begin(), values.end()), values.end());
      if (others) in_memory += values.size();
    }
    for (uint32_t at : both.instrs) {
      const Instr& i = r_.instrs[at];
      for (int k = 0; k < i.n_in; ++k) numbers += r_.in(i)[k] == kNone;
    }
    return within_limits(both.instrs.size(), in_memory, numbers);
  }

  // Whether no group between a and b depends on `g`, which is one of them, or the other way round.
  bool can_move(uint32_t g, uint32_t a, uint32_t b) const {
    for (uint32_t st : storages(groups_[g])) {
      const bool writes = std::any_of(accesses_[st].begin(), accesses_[st].end(),
                                      [&](const Access& x) { return x.group == g && x.write; });
      for (const Access& x : accesses_[st]) {
        if (x.group > a && x.group < b && (writes || x.write)) return false;
      }
    }
    return true;
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
  std::vector<Group>& groups_;
  std::vector<std::vector<Access>> accesses_;  // By storage.
  std::vector<bool> lasting_;                  // By storage: it is used after the step.
};

}  // namespace

void merge_groups(const Recording& r, Schedule& s) {
  Merger(r, s).run();
}

}  // namespace brrr::graph
