// At the group where most is alive, values that are neither made nor used there
// are dropped, those first that cost least to make for their bytes.
#include "graph/chooser.h"

#include <algorithm>
#include <map>
#include <optional>

namespace brrr::graph {

namespace {

// In bytes moved; a library kernel (a product, attention) counts as many times what it moves.
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

  // Group by group, the fullest first, until one is reached that stays as full.
  Lists less_memory(std::set<uint32_t>& banned, int64_t excess, Allowance& may) {
    std::vector<int64_t> alive = bytes_alive();
    const int64_t most = *std::ranges::max_element(alive);
    const int64_t goal = most - std::min(excess, most / 8);  // A new schedule may want others.
    Lists chosen;
    std::set<uint32_t> dropped, kept;  // What is made anew now, and what that is made from.
    for (;;) {
      const auto fullest = std::ranges::max_element(alive);
      const size_t before = chosen.size();
      for (const Candidate* x : candidates(static_cast<uint32_t>(fullest - alive.begin()))) {
        if (*fullest <= goal) break;
        const uint32_t st = x->anew.storage;
        if (banned.count(st) || room(st) < may.least) continue;
        if (may.only_whole && s_.strips.parts(st) > 1) continue;
        if (x->cost > may.cost || may.values == 0) continue;
        const auto gone = [&](uint32_t leaf) { return dropped.count(leaf) > 0; };
        if (kept.count(st) || std::ranges::any_of(x->leaves, gone)) continue;
        dropped.insert(st);
        banned.insert(st);
        may.cost -= x->cost;
        --may.values;
        kept.insert(x->leaves.begin(), x->leaves.end());
        for (uint32_t g = x->from + 1; g < x->to; ++g) alive[g] -= room(st);
        for (uint32_t leaf : x->longer) {
          for (uint32_t g = life_[leaf].second + 1; g <= x->to; ++g) alive[g] += room(leaf);
        }
        chosen.push_back({x->anew});
      }
      if (*fullest <= goal || chosen.size() == before) return chosen;
    }
  }

 private:
  // A value that nobody needs between two groups; what it is made from, and what of that lives
  // longer for it.
  struct Candidate {
    Anew anew;
    std::vector<uint32_t> leaves = {}, longer = {};
    uint32_t from = 0, to = 0;
    double cost = 0, per_byte = 0;
  };

  // The instructions that make the value before its users, from what is alive in the first one's
  // group; of what is not, small values live longer, large ones are made anew, too.
  bool chain_from_living(uint32_t made, int depth, Candidate& x) const {
    constexpr int deepest = 24;
    constexpr int64_t small = 8;
    const std::vector<uint32_t> all = makers(made);
    if (all.empty() || depth > deepest) return false;
    for (uint32_t st : inputs(all, made)) {
      const bool there = !temporary(st) || life_[st].second >= x.to;
      const std::vector<uint32_t> from = there ? all : makers(st);
      if (there || from.empty() || room(st) * small <= room(made)) {
        if (!unchanged(st, all[0], x.anew.before)) return false;
        if (!there) x.longer.push_back(st);
        x.leaves.push_back(st);
      } else if (!std::ranges::binary_search(x.anew.instrs, from[0]) &&
                 !chain_from_living(st, depth + 1, x)) {
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

  // The value for those who read it in the group or later, if nobody writes it there.
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
    if (!chain_from_living(st, 0, x)) return {};
    int64_t net = room(st);
    for (uint32_t leaf : x.longer) net -= room(leaf);
    if (net <= 0) return {};
    for (uint32_t at : x.anew.instrs) x.cost += cost(r_, r_.instrs[at]);
    x.per_byte = x.cost / static_cast<double>(net);
    return x;
  }

  // What is alive at the group for those after it alone, the cheapest for its bytes first.
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
      const auto [at, fresh] = known_.try_emplace({st, next});
      if (fresh) at->second = candidate(st, next);
      if (at->second) all.push_back(&*at->second);
    }
    std::ranges::stable_sort(all, {}, &Candidate::per_byte);
    return all;
  }

  std::map<std::pair<uint32_t, uint32_t>, std::optional<Candidate>> known_;
};

}  // namespace

Lists less_memory(const Recording& r, const Schedule& s, std::set<uint32_t>& banned, int64_t excess,
                  Allowance& may) {
  return Chooser(r, s).less_memory(banned, excess, may);
}

double step_cost(const Recording& r, const Schedule& s) {
  double all = 0;
  for (const Group& g : s.groups) {
    for (uint32_t at : g.instrs) all += cost(r, r.instrs[at]);
  }
  return all;
}

}  // namespace brrr::graph
