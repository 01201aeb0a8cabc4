// Drops values that are alive, but neither written nor read, at the group where most bytes are
// alive: first those whose recomputation costs least per byte.
#include "graph/chooser.h"

#include <algorithm>
#include <map>
#include <optional>

namespace brrr::graph {

namespace {

// In bytes moved; those of a library kernel (a product, attention) count `library` times.
double cost(const Recording& r, const Instr& i) {
  constexpr double library = 16;
  double moved = 0;
  r.each_operand(i, [&](uint32_t value, bool) {
    moved += static_cast<double>(r.storages[r.value(value).storage].bytes);
  });
  return moved * (i.op->pointwise || i.op->row || i.op->reduction ? 1 : library);
}

class Chooser : public Values {
 public:
  using Values::Values;

  // Group by group, the fullest first, until the goal is met or the fullest cannot be relieved.
  Lists less_memory(std::set<uint32_t>& banned, int64_t excess, Allowance& allowance) {
    std::vector<int64_t> alive = bytes_alive();
    const int64_t most = *std::ranges::max_element(alive);
    const int64_t goal = most - std::min(excess, most / 8);  // A new schedule may favour others.
    Lists chosen;
    std::set<uint32_t> dropped, kept;  // What is recomputed now, and from what.
    for (;;) {
      const auto fullest = std::ranges::max_element(alive);
      const size_t before = chosen.size();
      for (const Candidate* x : candidates(static_cast<uint32_t>(fullest - alive.begin()))) {
        if (*fullest <= goal) break;
        const uint32_t st = x->anew.storage;
        if (banned.count(st) || room(st) < allowance.min_bytes) continue;
        if (allowance.only_whole && s_.strips.parts(st) > 1) continue;
        if (x->cost > allowance.cost || allowance.values == 0) continue;
        const auto is_dropped = [&](uint32_t leaf) { return dropped.count(leaf) > 0; };
        if (kept.count(st) || std::ranges::any_of(x->leaves, is_dropped)) continue;
        dropped.insert(st);
        banned.insert(st);
        allowance.cost -= x->cost;
        --allowance.values;
        kept.insert(x->leaves.begin(), x->leaves.end());
        for (uint32_t g = x->from + 1; g < x->to; ++g) alive[g] -= room(st);
        for (uint32_t leaf : x->extended) {
          for (uint32_t g = life_[leaf].second + 1; g <= x->to; ++g) alive[g] += room(leaf);
        }
        chosen.push_back({x->anew});
      }
      if (*fullest <= goal || chosen.size() == before) return chosen;
    }
  }

 private:
  // A value unused between the groups `from` and `to`; the storages that it is recomputed from, and
  // those of them whose live ranges are extended for it.
  struct Candidate {
    Recomputed anew;
    std::vector<uint32_t> leaves = {}, extended = {};
    uint32_t from = 0, to = 0;
    double cost = 0, per_byte = 0;
  };

  // Collects the instructions that recompute the value from storages alive in its first user's
  // group. Others live longer if they are small or have no makers, and are recomputed if not.
  bool find_chain(uint32_t made, int depth, Candidate& x) const {
    constexpr int deepest = 24;
    constexpr int64_t small = 8;
    const std::vector<uint32_t> all = makers(made);
    if (all.empty() || depth > deepest) return false;
    for (uint32_t st : inputs(all, made)) {
      const bool there = !temporary(st) || life_[st].second >= x.to;
      const std::vector<uint32_t> from = there ? all : makers(st);
      if (there || from.empty() || room(st) * small <= room(made)) {
        if (!unchanged(st, all[0], x.anew.before)) return false;
        if (!there) x.extended.push_back(st);
        x.leaves.push_back(st);
      } else if (!std::ranges::binary_search(x.anew.instrs, from[0]) &&
                 !find_chain(st, depth + 1, x)) {
        return false;
      }
    }
    x.anew.instrs.insert(x.anew.instrs.end(), all.begin(), all.end());
    distinct(x.anew.instrs);
    return true;
  }

  std::vector<int64_t> bytes_alive() const {
    std::vector<int64_t> alive(s_.groups.size() + 1);
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      if (!temporary(st) || !s_.stored[st]) continue;
      const auto [first, last] = s_.stay(r_, st);
      alive[first] += room(st);
      alive[last + 1] -= room(st);
    }
    for (size_t g = 1; g < alive.size(); ++g) alive[g] += alive[g - 1];
    return alive;
  }

  // The value, recomputed for its readers in the group and later; none if it is written there.
  std::optional<Candidate> candidate(uint32_t st, uint32_t group) const {
    Candidate x{.anew = {st, {}, {}, 0}};
    for (const Access& a : r_.accesses[st]) {
      const uint32_t g = s_.group_of[a.instr];
      if (g < group) {
        x.from = std::max(x.from, g);
      } else if (a.write) {
        return {};
      } else {
        x.anew.users.push_back(a.instr);
      }
    }
    x.anew.before = distinct(x.anew.users).front();
    x.to = s_.group_of[x.anew.before];
    if (!find_chain(st, 0, x)) return {};
    int64_t net = room(st);
    for (uint32_t leaf : x.extended) net -= room(leaf);
    if (net <= 0) return {};
    for (uint32_t at : x.anew.instrs) x.cost += cost(r_, r_.instrs[at]);
    x.per_byte = x.cost / static_cast<double>(net);
    return x;
  }

  // Values alive across the group but not used in it, the cheapest per byte first.
  std::vector<const Candidate*> candidates(uint32_t peak) {
    std::vector<const Candidate*> all;
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      const auto [first, last] = life_[st];
      if (!temporary(st) || !s_.stored[st] || first >= peak || last <= peak) continue;
      uint32_t next = last;
      bool used = false;
      for (const Access& a : r_.accesses[st]) {
        const uint32_t g = s_.group_of[a.instr];
        used |= g == peak;
        if (g > peak) next = std::min(next, g);
      }
      if (used) continue;
      const auto [at, fresh] = cache_.try_emplace({st, next});
      if (fresh) at->second = candidate(st, next);
      if (at->second) all.push_back(&*at->second);
    }
    std::ranges::stable_sort(all, {}, &Candidate::per_byte);
    return all;
  }

  std::map<std::pair<uint32_t, uint32_t>, std::optional<Candidate>> cache_;
};

}  // namespace

Lists less_memory(const Recording& r, const Schedule& s, std::set<uint32_t>& banned, int64_t excess,
                  Allowance& allowance) {
  return Chooser(r, s).less_memory(banned, excess, allowance);
}

double step_cost(const Recording& r, const Schedule& s) {
  double all = 0;
  for (const Group& g : s.groups) {
    for (uint32_t at : g.instrs) all += cost(r, r.instrs[at]);
  }
  return all;
}

}  // namespace brrr::graph
