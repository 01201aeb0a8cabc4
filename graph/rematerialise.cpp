// Which values are not worth keeping. Both ways decide by the schedule of the step as it is, where
// what passes in registers is known, and look at what became of it: a change that does not pay is
// dropped. A value is computed anew by the same instructions on the same operands, so its bits are
// the same.
//
// For fewer bytes: a pointwise value that other fused kernels read again costs a store and loads;
// computed there it costs what it is computed from, if that is not read there anyway. This is the
// min-cut between what a group makes and what later ones read, taken value by value in program
// order: values made anew count as there for the next.
//
// For less memory (StepOptions::memory_budget): at the group where most is alive, values that are
// neither made nor used there are dropped, those first that cost least to make for their bytes.
#include "graph/rematerialise.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "graph/cost.h"
#include "graph/group.h"
#include "graph/rewrite.h"

namespace brrr::graph {

namespace {

using Lists = std::vector<std::vector<Anew>>;

void append(std::vector<uint32_t>& list, const std::vector<uint32_t>& more) {
  list.insert(list.end(), more.begin(), more.end());
  distinct(list);
}

// What of a step may be made anew.
class Chooser {
 public:
  Chooser(const Recording& r, const Schedule& s) : r_(r), s_(s) {
    for (uint32_t st = 0; st < r.storages.size(); ++st) life_.push_back(s.life(r, st));
    writes_.resize(r.storages.size());
    for (uint32_t at = 0; at < r.instrs.size(); ++at) {
      if (r.instrs[at].op->is_view()) continue;
      r.each_operand(r.instrs[at], [&](uint32_t value, bool write) {
        if (write) writes_[r.value(value).storage].push_back(at);
      });
    }
  }

  Lists fewer_bytes();
  Lists less_memory(std::set<uint32_t>& banned, int64_t excess);

 private:
  // The instructions that write it, if all of them come before it is read and can run twice: one,
  // and what changes its result in place. Else none.
  std::vector<uint32_t> makers(uint32_t st) const {
    std::vector<uint32_t> all;
    for (const Access& a : r_.accesses[st]) {
      const Instr& i = r_.instrs[a.instr];
      const bool last = !all.empty() && all.back() == a.instr;
      if (!a.write || last) continue;
      if (i.op->check_values || is_host_data(i) || i.into == all.empty()) return {};
      if (i.n_out > 1 && (i.into || !alone(i, st))) return {};
      all.push_back(a.instr);
    }
    for (const Access& a : r_.accesses[st]) {
      if (!all.empty() && a.instr < all.back() &&
          std::find(all.begin(), all.end(), a.instr) == all.end())
        return {};
    }
    return all;
  }
  // Whether nobody else writes what the instruction makes beside this one.
  bool alone(const Instr& i, uint32_t st) const {
    return std::all_of(r_.out(i), r_.out(i) + i.n_out, [&](uint32_t value) {
      const uint32_t other = r_.value(value).storage;
      const auto& uses = r_.accesses[other];
      return other == st ||
             std::count_if(uses.begin(), uses.end(), [](auto& a) { return a.write; }) == 1;
    });
  }
  bool temporary(uint32_t st) const {
    return r_.storages[st].origin == Origin::Internal && !r_.lasting[st] &&
           !r_.accesses[st].empty();
  }
  bool unchanged(uint32_t st, uint32_t from, uint32_t to) const {
    return std::none_of(writes_[st].begin(), writes_[st].end(),
                        [&](uint32_t at) { return at > from && at < to; });
  }
  bool used_in(uint32_t st, uint32_t group) const {
    return std::any_of(r_.accesses[st].begin(), r_.accesses[st].end(),
                       [&](const Access& a) { return s_.group_of[a.instr] == group; });
  }
  // Other storages that the makers of one read.
  std::vector<uint32_t> inputs(const std::vector<uint32_t>& makers, uint32_t made) const {
    std::vector<uint32_t> list;
    for (uint32_t at : makers) {
      r_.each_operand(r_.instrs[at], [&](uint32_t value, bool write) {
        if (!write && r_.value(value).storage != made) list.push_back(r_.value(value).storage);
      });
    }
    return distinct(list);
  }
  int64_t bytes(uint32_t st) const { return static_cast<int64_t>(r_.storages[st].bytes); }

  // What lies between in registers, what it is made from, and what of that lives longer for it.
  struct Chain {
    std::vector<uint32_t> instrs, leaves, longer;
  };
  // A value that nobody needs between two groups.
  struct Candidate {
    Anew anew;
    Chain chain = {};
    uint32_t from = 0, to = 0;
    double cost = 0;
  };
  bool chain_in_group(uint32_t st, uint32_t until, Chain& c) const;
  bool chain_from_living(uint32_t st, uint32_t until, uint32_t group, int depth, Chain& c) const;
  std::vector<int64_t> bytes_alive() const;
  std::optional<Candidate> candidate(uint32_t st, uint32_t group) const;
  std::vector<const Candidate*> candidates(uint32_t peak);
  double cost(const Chain& c) const;

  const Recording& r_;
  const Schedule& s_;
  std::vector<std::pair<uint32_t, uint32_t>> life_;
  std::map<std::pair<uint32_t, uint32_t>, std::optional<Candidate>> known_;
  // By storage. One without effect has one if the value is read again later.
  std::vector<std::vector<uint32_t>> writes_;
};

// The pointwise instructions of its group that make the value from what is in memory.
bool Chooser::chain_in_group(uint32_t made, uint32_t until, Chain& c) const {
  const std::vector<uint32_t> all = makers(made);
  if (all.empty()) return false;
  if (std::find(c.instrs.begin(), c.instrs.end(), all[0]) != c.instrs.end()) return true;
  for (uint32_t at : all) {
    const bool here = s_.group_of[at] == s_.group_of[all[0]];
    if (!here || !r_.instrs[at].op->pointwise) return false;
  }
  for (uint32_t st : inputs(all, made)) {
    if (r_.lasting[st] || s_.stored[st]) {
      if (!unchanged(st, all[0], until)) return false;
      c.leaves.push_back(st);
    } else if (!chain_in_group(st, until, c)) {
      return false;
    }
  }
  append(c.instrs, all);
  return true;
}

Lists Chooser::fewer_bytes() {
  // A polynomial takes about as long as to move so many bytes of each element.
  constexpr int64_t polynomial_bytes = 4;
  std::map<uint32_t, std::vector<Anew>> by_group;
  const auto anew_in = [&](uint32_t storage, uint32_t group) {
    const auto at = by_group.find(group);
    return at != by_group.end() && std::any_of(at->second.begin(), at->second.end(),
                                               [&](const Anew& a) { return a.storage == storage; });
  };
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    if (!temporary(st) || !s_.stored[st]) continue;
    Chain c;
    if (!chain_in_group(st, r_.accesses[st].back().instr, c)) continue;
    const uint32_t g = s_.group_of[c.instrs.back()];
    std::map<uint32_t, std::vector<uint32_t>> users;  // By group.
    for (const Access& a : r_.accesses[st]) {
      if (s_.group_of[a.instr] != g) users[s_.group_of[a.instr]].push_back(a.instr);
    }
    bool can = s_.groups[g].fused && !users.empty();
    size_t work = 0;
    for (uint32_t at : c.instrs) work += polynomials(r_, r_.instrs[at]);
    const int64_t elements = r_.value(r_.out(r_.instrs[c.instrs.back()])[0]).numel;
    int64_t gain = bytes(st), longer = 0;
    uint32_t last = 0;
    for (const auto& [h, list] : users) {
      can &= s_.groups[h].fused;
      gain += bytes(st) - static_cast<int64_t>(work) * polynomial_bytes * elements;
      last = std::max(last, h);
      for (uint32_t leaf : distinct(c.leaves)) {
        if (!anew_in(leaf, h) && !used_in(leaf, h)) gain -= bytes(leaf);
      }
    }
    for (uint32_t leaf : c.leaves)
      longer += temporary(leaf) && life_[leaf].second < last ? bytes(leaf) : 0;
    if (!can || gain < kLittleMemory || longer > bytes(st)) continue;
    for (auto& [h, list] : users) by_group[h].push_back({st, c.instrs, distinct(list), 0});
  }
  Lists all;
  for (auto& [h, list] : by_group) {
    // In few places: what is repeated in one can be one kernel.
    std::vector<uint32_t> places;
    for (const Anew& a : list) places.push_back(a.users.front());
    distinct(places);
    for (Anew& a : list) {
      a.before = *std::upper_bound(places.begin(), places.end(), a.instrs.back());
    }
    all.push_back(std::move(list));
  }
  return all;
}

// The instructions that make the value before `until`, from what is alive in that one's group; of
// what is not, small values live longer, large ones are made anew, too.
bool Chooser::chain_from_living(uint32_t made, uint32_t until, uint32_t group, int depth,
                                Chain& c) const {
  constexpr int deepest = 24;
  constexpr int64_t small = 8;
  const std::vector<uint32_t> all = makers(made);
  if (all.empty() || depth > deepest) return false;
  for (uint32_t st : inputs(all, made)) {
    const bool there = !temporary(st) || life_[st].second >= group;
    const std::vector<uint32_t> from = there ? all : makers(st);
    if (there || from.empty() || bytes(st) * small <= bytes(made)) {
      if (!unchanged(st, all[0], until)) return false;
      if (!there) c.longer.push_back(st);
      c.leaves.push_back(st);
    } else if (!std::binary_search(c.instrs.begin(), c.instrs.end(), from[0]) &&
               !chain_from_living(st, until, group, depth + 1, c)) {
      return false;
    }
  }
  append(c.instrs, all);
  return true;
}

// In bytes moved; a library kernel (a product, attention) counts as many times what it moves.
double Chooser::cost(const Chain& c) const {
  constexpr double library = 16;
  double all = 0;
  for (uint32_t at : c.instrs) {
    const Instr& i = r_.instrs[at];
    double moved = 0;
    r_.each_operand(i, [&](uint32_t value, bool) {
      moved += static_cast<double>(bytes(r_.value(value).storage));
    });
    all += moved * (i.op->pointwise || i.op->row || i.op->reduction ? 1 : library);
  }
  return all;
}

std::vector<int64_t> Chooser::bytes_alive() const {
  std::vector<int64_t> alive(s_.groups.size() + 1);
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    if (!temporary(st) || !s_.stored[st]) continue;
    alive[life_[st].first] += bytes(st);
    alive[life_[st].second + 1] -= bytes(st);
  }
  for (size_t g = 1; g < alive.size(); ++g) alive[g] += alive[g - 1];
  return alive;
}

// The value for those who read it in the group or later, if nobody writes it there.
std::optional<Chooser::Candidate> Chooser::candidate(uint32_t st, uint32_t group) const {
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
  const uint32_t until = x.anew.before = distinct(x.anew.users).front();
  x.to = s_.group_of[until];
  if (!chain_from_living(st, until, x.to, 0, x.chain)) return {};
  int64_t net = bytes(st);
  for (uint32_t leaf : x.chain.longer) net -= bytes(leaf);
  if (net <= 0) return {};
  x.anew.instrs = x.chain.instrs;
  x.cost = cost(x.chain) / static_cast<double>(net);
  return x;
}

// What is alive at the group for those after it alone, the cheapest for its bytes first.
std::vector<const Chooser::Candidate*> Chooser::candidates(uint32_t peak) {
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
  std::stable_sort(all.begin(), all.end(), [](auto* a, auto* b) { return a->cost < b->cost; });
  return all;
}

// Group by group, the fullest first, until one is reached that stays as full.
Lists Chooser::less_memory(std::set<uint32_t>& banned, int64_t excess) {
  std::vector<int64_t> alive = bytes_alive();
  const int64_t most = *std::max_element(alive.begin(), alive.end());
  const int64_t goal = most - std::min(excess, most / 8);  // A new schedule may want others.
  Lists chosen;
  std::set<uint32_t> dropped, kept;  // What is made anew now, and what that is made from.
  for (;;) {
    const auto fullest = std::max_element(alive.begin(), alive.end());
    const size_t before = chosen.size();
    for (const Candidate* c : candidates(static_cast<uint32_t>(fullest - alive.begin()))) {
      if (*fullest <= goal) break;
      const Candidate& x = *c;
      const uint32_t st = x.anew.storage;
      if (banned.count(st)) continue;
      const auto gone = [&](uint32_t leaf) { return dropped.count(leaf) > 0; };
      if (kept.count(st) || std::any_of(x.chain.leaves.begin(), x.chain.leaves.end(), gone))
        continue;
      dropped.insert(st);
      banned.insert(st);
      kept.insert(x.chain.leaves.begin(), x.chain.leaves.end());
      for (uint32_t g = x.from + 1; g < x.to; ++g) alive[g] -= bytes(st);
      for (uint32_t leaf : x.chain.longer) {
        for (uint32_t g = life_[leaf].second + 1; g <= x.to; ++g) alive[g] += bytes(leaf);
      }
      chosen.push_back({x.anew});
    }
    if (*fullest <= goal || chosen.size() == before) return chosen;
  }
}

double moved(const Recording& r, const Schedule& s) {
  double bytes = 0;
  for (const Group& g : s.groups) bytes += g.fused ? group_bytes(r, s, g) : traffic(r, s, g).apart;
  return bytes;
}

constexpr int kMostInVain = 8;   // Rounds without a gain.
constexpr size_t kMostWork = 2;  // Times the step's instructions that may run again.

size_t kernels(const Schedule& s) { return s.groups.size(); }

size_t repeated(const Recording& r) {
  size_t n = 0;
  for (size_t at = 0; at < r.again.size(); ++at) n += r.again[at] && r.live[at];
  return n;
}

}  // namespace

Rematerialised rematerialise(const Recording& r, const StepOptions& options, const Target& target) {
  Rematerialised out{.schedule = make_schedule(r, options.fuse, target)};
  const auto of = [&](const Rematerialised& a) -> const Recording& {
    return a.recording ? *a.recording : r;
  };
  const auto changed = [&](const Rematerialised& a, const Lists& lists) {
    Rematerialised b = a;
    b.recording = rewrite(of(a), lists);
    b.schedule = make_schedule(*b.recording, options.fuse, target);
    return b;
  };
  if (options.fuse && options.rematerialise) {
    if (const Lists lists = Chooser(r, out.schedule).fewer_bytes(); !lists.empty()) {
      Rematerialised with = changed(out, lists);
      with.bytes = moved(r, out.schedule) - moved(*with.recording, with.schedule);
      if (with.bytes > 0 && kernels(with.schedule) <= kernels(out.schedule)) out = std::move(with);
    }
  }
  if (options.memory_budget) {
    out.arena = out.arena_before = plan_memory(of(out), out.schedule).arena_bytes;
    Rematerialised now = out;   // Not less may lead to less: several groups are as full.
    std::set<uint32_t> banned;  // Tried before. Storages keep their numbers.
    int in_vain = 0;
    while (out.arena > options.memory_budget && in_vain < kMostInVain) {
      const auto excess = static_cast<int64_t>(now.arena - options.memory_budget);
      const Lists lists = Chooser(of(now), now.schedule).less_memory(banned, excess);
      if (lists.empty()) break;
      Rematerialised with = changed(now, lists);
      if (repeated(*with.recording) > kMostWork * r.instrs.size()) break;
      with.arena = plan_memory(*with.recording, with.schedule).arena_bytes;
      ++in_vain;
      if (with.arena > now.arena) continue;
      now = std::move(with);
      if (now.arena >= out.arena) continue;
      out = now;
      in_vain = 0;
    }
  }
  out.instrs = out.recording ? repeated(*out.recording) : 0;
  return out;
}

}  // namespace brrr::graph
