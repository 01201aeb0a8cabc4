// Recomputes pointwise values in later kernels where that moves fewer bytes. A value passed through
// memory costs a store and its loads; a recomputed one costs the loads of its inputs that the later
// kernel does not read anyway. The cheapest choice of the values that one group passes to a later
// one is a minimum cut between memory and that group's operands: each cut edge is a value to load.
#include <algorithm>

#include "graph/chooser.h"
#include "graph/cost.h"
#include "graph/min_cut.h"

namespace brrr::graph {

namespace {

class FewerBytes : public Values {
 public:
  using Values::Values;

  Lists choose() {
    for (uint32_t g = 0; g < s_.groups.size(); ++g) {
      if (!s_.groups[g].fused) continue;
      inner_.clear(), readers_.clear(), loaded_.clear();
      r_.each_access(s_.groups[g].instrs, [&](const Access& a) {
        if (a.write) add(r_.value(a.value).storage, g);
      });
      for (uint32_t h : readers_) cut(h);
      drop();
    }
    Lists all;
    for (auto& [h, list] : recomputed_) {
      // Repeat instructions in few places: those repeated in one place can become one kernel.
      std::vector<uint32_t> places;
      for (const Recomputed& a : list) places.push_back(a.users.front());
      distinct(places);
      for (Recomputed& a : list) {
        a.before = *std::upper_bound(places.begin(), places.end(), a.instrs.back());
      }
      all.push_back(std::move(list));
    }
    return all;
  }

 private:
  // A value of the current group that later groups can compute, too.
  struct Inner {
    std::vector<uint32_t> makers, inputs;
    std::map<uint32_t, std::vector<uint32_t>> users;  // In other groups, by group.
    bool passed = false;                              // It has users, all of them fused.
    int64_t work = 0;                                 // Of recomputing, in bytes moved meanwhile.
  };
  // The instructions to repeat for a recomputed value, and the storages that they load.
  struct Chain {
    std::vector<uint32_t> instrs, leaves;
  };

  void add(uint32_t st, uint32_t group) {
    if (!temporary(st) || inner_.count(st)) return;
    Inner v;
    v.makers = makers(st);
    for (uint32_t at : v.makers) {
      if (s_.group_of[at] != group || !r_.instrs[at].op->pointwise) return;
      // A polynomial takes about as long as moving this many bytes per element.
      constexpr int64_t polynomial_bytes = 4;
      v.work += static_cast<int64_t>(polynomials(r_, r_.instrs[at])) * polynomial_bytes *
                r_.value(r_.out(r_.instrs[at])[0]).numel;
    }
    if (v.makers.empty()) return;
    v.inputs = inputs(v.makers, st);
    for (const Access& a : r_.accesses[st]) {
      if (s_.group_of[a.instr] != group) v.users[s_.group_of[a.instr]].push_back(a.instr);
    }
    v.passed = !v.users.empty() && std::all_of(v.users.begin(), v.users.end(), [&](const auto& u) {
      return s_.groups[u.first].fused;
    });
    if (v.passed) {
      for (auto& [h, list] : v.users) readers_.insert(h), distinct(list);
    }
    inner_.emplace(st, std::move(v));
  }

  // The bytes that it costs the group to read a value that is in memory anyway.
  int64_t load_bytes(uint32_t st, uint32_t group) const {
    const auto uses = [&](const Access& a) { return s_.group_of[a.instr] == group; };
    if (std::ranges::any_of(r_.accesses[st], uses)) return 0;
    const auto it = recomputed_.find(group);
    const bool anew =
        it != recomputed_.end() && std::ranges::count(it->second, st, &Recomputed::storage);
    return anew ? 0 : bytes(st);
  }

  // Likewise for an inner value, which need not be stored: its readers share the cost of the store.
  int64_t keep_bytes(uint32_t st, uint32_t group) const {
    const Inner& v = inner_.at(st);
    if (v.passed) return bytes(st) + bytes(st) / static_cast<int64_t>(v.users.size());
    return s_.stored[st] ? load_bytes(st, group) : 2 * bytes(st);
  }

  void cut(uint32_t group) {
    std::map<uint32_t, uint32_t> node;  // Two per value; the edge between them is its load.
    uint32_t until = 0;
    for (const auto& [st, v] : inner_) {
      node.try_emplace(st, static_cast<uint32_t>(2 * node.size()));
      for (uint32_t in : v.inputs) node.try_emplace(in, static_cast<uint32_t>(2 * node.size()));
      const auto users = v.users.find(group);
      if (v.passed && users != v.users.end()) until = std::max(until, users->second.back());
    }
    const auto source = static_cast<uint32_t>(2 * node.size()), sink = source + 1;
    MinCut cut(sink + 1);
    for (const auto& [st, at] : node) {
      const auto found = inner_.find(st);
      const bool is_inner = found != inner_.end();
      cut.edge(at, at + 1, is_inner ? keep_bytes(st, group) : load_bytes(st, group));
      if (!is_inner) {
        cut.edge(source, at, MinCut::kNever);
        continue;
      }
      const Inner& v = found->second;
      bool can = true;
      for (uint32_t in : v.inputs) {
        cut.edge(node[in] + 1, at, MinCut::kNever);
        const bool there = r_.lasting[in] || s_.stored[in] || inner_.count(in);
        can &= there && unchanged(in, v.makers[0], until);
      }
      cut.edge(source, at, can ? v.work : MinCut::kNever);
      if (v.passed && v.users.count(group)) cut.edge(at + 1, sink, MinCut::kNever);
    }
    const std::vector<bool> sinks = cut.sink_side(source, sink);
    for (const auto& [st, v] : inner_) {
      if (!sinks[node[st]] && sinks[node[st] + 1]) loaded_.insert(st);
    }
  }

  void extend(Chain& c, uint32_t st) const {
    const Inner& v = inner_.at(st);
    if (std::ranges::count(c.instrs, v.makers[0])) return;
    c.instrs.insert(c.instrs.end(), v.makers.begin(), v.makers.end());
    for (uint32_t in : v.inputs) {
      const auto found = inner_.find(in);
      const bool there =
          found == inner_.end() || loaded_.count(in) || (s_.stored[in] && !found->second.passed);
      there ? c.leaves.push_back(in) : extend(c, in);
    }
  }

  // Whether fewer bytes are moved, and extended live ranges take no more bytes than are dropped.
  bool pays(const std::map<uint32_t, Chain>& by_group) const {
    int64_t gain = 0, dropped = 0;
    uint32_t last = 0;
    std::set<uint32_t> longer;
    for (const auto& [st, v] : inner_) {
      if (!v.passed || loaded_.count(st)) continue;
      dropped += bytes(st);
      gain += bytes(st) * static_cast<int64_t>(1 + v.users.size());
      last = std::max(last, v.users.rbegin()->first);
    }
    for (const auto& [h, c] : by_group) {
      for (uint32_t leaf : c.leaves) {
        gain -= s_.stored[leaf] || !inner_.count(leaf) ? load_bytes(leaf, h) : keep_bytes(leaf, h);
        const bool lives_longer = temporary(leaf) && life_[leaf].second < last;
        if (lives_longer && longer.insert(leaf).second) dropped -= bytes(leaf);
      }
      for (const auto& [st, v] : inner_) {
        if (std::binary_search(c.instrs.begin(), c.instrs.end(), v.makers[0])) gain -= v.work;
      }
    }
    return gain >= kNegligibleBytes && dropped >= 0;
  }

  void drop() {
    std::map<uint32_t, Chain> by_group;
    const auto each_dropped = [&](const auto& f) {
      for (const auto& [st, v] : inner_) {
        if (!v.passed || loaded_.count(st)) continue;
        for (const auto& [h, users] : v.users) f(st, h, users);
      }
    };
    each_dropped([&](uint32_t st, uint32_t h, auto&) { extend(by_group[h], st); });
    for (auto& [h, c] : by_group) distinct(c.instrs), distinct(c.leaves);
    if (by_group.empty() || !pays(by_group)) return;
    each_dropped([&](uint32_t st, uint32_t h, const std::vector<uint32_t>& users) {
      Chain own;
      extend(own, st);
      recomputed_[h].push_back({st, distinct(own.instrs), users, 0});
    });
  }

  std::map<uint32_t, std::vector<Recomputed>> recomputed_;  // By the group that computes them.
  // Of the current group:
  std::map<uint32_t, Inner> inner_;
  std::set<uint32_t> readers_;  // Groups that use passed values.
  std::set<uint32_t> loaded_;   // Inner values that some reader loads.
};

}  // namespace

Lists fewer_bytes(const Recording& r, const Schedule& s) { return FewerBytes(r, s).choose(); }

}  // namespace brrr::graph
