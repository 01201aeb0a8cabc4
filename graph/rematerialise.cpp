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
#include <set>

#include "graph/cost.h"
#include "graph/group.h"

namespace brrr::graph {

namespace {

/// Instructions to repeat, before the first of the users, which then read these storages anew.
struct Again {
  std::vector<uint32_t> instrs, storages, users;  // Each rising.
};

class Rewriter {
 public:
  explicit Rewriter(const Recording& r) : r_(r), out_(std::make_unique<Recording>()) {
    out_->values = r.values;
    out_->storages = r.storages;
    out_->operands = r.operands;
    out_->paths = r.paths;
    out_->control = r.control;
    out_->externals = r.externals;
    out_->survivors = r.survivors;
    out_->gradients = r.gradients;
    out_->draws = r.draws;
  }

  std::unique_ptr<Recording> run(const std::vector<Again>& all) {
    maps_.resize(all.size());
    std::vector<uint32_t> now_at;
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      for (size_t k = 0; k < all.size(); ++k) {
        if (all[k].users.front() != at) continue;
        for (uint32_t again : all[k].instrs) repeat(again, k);
      }
      now_at.push_back(static_cast<uint32_t>(out_->instrs.size()));
      out_->instrs.push_back(r_.instrs[at]);
      out_->again.push_back(!r_.again.empty() && r_.again[at]);
      for (size_t k = 0; k < all.size(); ++k) {
        const std::vector<uint32_t>& users = all[k].users;
        if (std::binary_search(users.begin(), users.end(), at)) redirect(all[k], k);
      }
    }
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      StorageInfo& info = out_->storages[st];
      if (info.origin == Origin::Internal) info.maker = now_at[info.maker];
    }
    out_->complete();
    return std::move(out_);
  }

 private:
  // The value in the storage's copy of Again number k.
  uint32_t copy_of(uint32_t value, size_t k) {
    Value v = out_->values[value];
    v.storage = maps_[k].at(v.storage);
    out_->values.push_back(v);
    return static_cast<uint32_t>(out_->values.size() - 1);
  }

  template <class F> void replace_operands(Instr& i, const F& f) {
    const auto first = static_cast<uint32_t>(out_->operands.size());
    const int n = i.n_in + i.n_out;
    for (int k = 0; k < n; ++k) {
      const uint32_t value = out_->operands[i.first_in + static_cast<uint32_t>(k)];
      out_->operands.push_back(value == kNone ? kNone : f(value, k >= i.n_in));
    }
    i.first_in = first;
    i.first_out = first + i.n_in;
  }

  void repeat(uint32_t at, size_t k) {
    Instr i = r_.instrs[at];
    const auto index = static_cast<uint32_t>(out_->instrs.size());
    replace_operands(i, [&](uint32_t value, bool made) {
      const uint32_t st = out_->values[value].storage;
      if (made && !maps_[k].count(st)) {
        maps_[k][st] = static_cast<uint32_t>(out_->storages.size());
        StorageInfo info = out_->storages[st];
        info.maker = index;
        out_->storages.push_back(info);
      }
      return maps_[k].count(st) ? copy_of(value, k) : value;
    });
    out_->instrs.push_back(i);
    out_->again.push_back(true);
  }

  void redirect(const Again& a, size_t k) {
    replace_operands(out_->instrs.back(), [&](uint32_t value, bool made) {
      const uint32_t st = out_->values[value].storage;
      const bool anew = !made && std::binary_search(a.storages.begin(), a.storages.end(), st);
      return anew ? copy_of(value, k) : value;
    });
  }

  const Recording& r_;
  std::unique_ptr<Recording> out_;
  std::vector<std::map<uint32_t, uint32_t>> maps_;  // By Again: storage -> its copy.
};

void append(std::vector<uint32_t>& list, const std::vector<uint32_t>& more) {
  list.insert(list.end(), more.begin(), more.end());
  distinct(list);
}

// What of a step may be made anew.
class Chooser {
 public:
  Chooser(const Recording& r, const Schedule& s) : r_(r), s_(s) {
    for (uint32_t st = 0; st < r.storages.size(); ++st) life_.push_back(s.life(r, st));
  }

  std::vector<Again> fewer_bytes();
  std::vector<Again> less_memory(std::set<uint32_t>& banned, int64_t excess);

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
      if (i.into && i.n_out > 1) return {};
      all.push_back(a.instr);
    }
    for (const Access& a : r_.accesses[st]) {
      if (!all.empty() && a.instr < all.back() &&
          std::find(all.begin(), all.end(), a.instr) == all.end())
        return {};
    }
    return all;
  }
  bool temporary(uint32_t st) const {
    return r_.storages[st].origin == Origin::Internal && !r_.lasting[st] &&
           !r_.accesses[st].empty();
  }
  bool unchanged(uint32_t st, uint32_t from, uint32_t to) const {
    return std::none_of(r_.accesses[st].begin(), r_.accesses[st].end(),
                        [&](const Access& a) { return a.write && a.instr > from && a.instr < to; });
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

  // What lies between in registers, and what it is made from.
  struct Chain {
    std::vector<uint32_t> instrs, leaves;
  };
  bool chain_in_group(uint32_t st, uint32_t until, Chain& c) const;
  bool chain_from_living(uint32_t st, uint32_t until, uint32_t group, int depth, Chain& c,
                         int64_t& extended) const;
  double cost(const Chain& c) const;

  const Recording& r_;
  const Schedule& s_;
  std::vector<std::pair<uint32_t, uint32_t>> life_;
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

std::vector<Again> Chooser::fewer_bytes() {
  // A polynomial takes about as long as to move so many bytes of each element.
  constexpr int64_t polynomial_bytes = 4;
  std::map<uint32_t, Again> by_group;
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
        const auto at = by_group.find(h);
        const bool anew = at != by_group.end() &&
                          std::count(at->second.storages.begin(), at->second.storages.end(), leaf);
        if (!anew && !used_in(leaf, h)) gain -= bytes(leaf);
      }
    }
    for (uint32_t leaf : c.leaves)
      longer += temporary(leaf) && life_[leaf].second < last ? bytes(leaf) : 0;
    if (!can || gain < kLittleMemory || longer > bytes(st)) continue;
    for (const auto& [h, list] : users) {
      Again& a = by_group[h];
      append(a.instrs, c.instrs);
      append(a.storages, {st});
      append(a.users, list);
    }
  }
  std::vector<Again> all;
  for (auto& [h, a] : by_group) all.push_back(std::move(a));
  return all;
}

// The instructions that make the value before `until`, from what is alive in that one's group; of
// what is not, small values live longer, large ones are made anew, too.
bool Chooser::chain_from_living(uint32_t made, uint32_t until, uint32_t group, int depth, Chain& c,
                                int64_t& extended) const {
  constexpr int deepest = 24;
  constexpr int64_t small = 8;
  const std::vector<uint32_t> all = makers(made);
  if (all.empty() || depth > deepest) return false;
  for (uint32_t st : inputs(all, made)) {
    const bool there = !temporary(st) || life_[st].second >= group;
    const std::vector<uint32_t> from = there ? all : makers(st);
    if (there || from.empty() || bytes(st) * small <= bytes(made)) {
      if (!unchanged(st, all[0], until)) return false;
      if (!there) extended += bytes(st);
      c.leaves.push_back(st);
    } else if (!std::binary_search(c.instrs.begin(), c.instrs.end(), from[0]) &&
               !chain_from_living(st, until, group, depth + 1, c, extended)) {
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

std::vector<Again> Chooser::less_memory(std::set<uint32_t>& banned, int64_t excess) {
  std::vector<int64_t> change(s_.groups.size() + 1);
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    if (!temporary(st) || !s_.stored[st]) continue;
    change[life_[st].first] += bytes(st);
    change[life_[st].second + 1] -= bytes(st);
  }
  for (size_t g = 1; g < change.size(); ++g) change[g] += change[g - 1];
  const auto peak =
      static_cast<uint32_t>(std::max_element(change.begin(), change.end()) - change.begin());
  struct Candidate {
    Again again;
    std::vector<uint32_t> leaves;
    uint32_t storage;
    int64_t net;
    double cost;
  };
  std::vector<Candidate> all;
  for (uint32_t st = 0; st < r_.storages.size(); ++st) {
    const auto [first, last] = life_[st];
    if (!temporary(st) || !s_.stored[st] || banned.count(st)) continue;
    if (first >= peak || last <= peak || used_in(st, peak)) continue;
    Candidate x{{}, {}, st, bytes(st), 0};
    for (const Access& a : r_.accesses[st]) {
      if (s_.group_of[a.instr] > peak) x.again.users.push_back(a.instr);
    }
    Chain c;
    int64_t extended = 0;
    const uint32_t until = distinct(x.again.users).front();
    if (!chain_from_living(st, until, s_.group_of[until], 0, c, extended)) continue;
    x.net -= extended;
    if (x.net <= 0) continue;
    x.again.storages = {st};
    x.again.instrs = c.instrs;
    x.leaves = c.leaves;
    x.cost = cost(c) / static_cast<double>(x.net);
    all.push_back(std::move(x));
  }
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.cost < b.cost; });
  std::vector<Again> chosen;
  std::set<uint32_t> dropped, kept;  // What is made anew now, and what that is made from.
  for (Candidate& x : all) {
    if (excess <= 0) break;
    if (kept.count(x.storage)) continue;
    if (std::any_of(x.leaves.begin(), x.leaves.end(),
                    [&](uint32_t l) { return dropped.count(l); })) {
      continue;
    }
    dropped.insert(x.storage);
    banned.insert(x.storage);
    kept.insert(x.leaves.begin(), x.leaves.end());
    excess -= x.net;
    chosen.push_back(std::move(x.again));
  }
  return chosen;
}

double moved(const Recording& r, const Schedule& s) {
  double bytes = 0;
  for (const Group& g : s.groups) bytes += g.fused ? group_bytes(r, s, g) : traffic(r, s, g).apart;
  return bytes;
}

size_t kernels(const Schedule& s) { return s.groups.size(); }

size_t repeated(const Recording& r) {
  size_t n = 0;
  for (size_t at = 0; at < r.again.size(); ++at) n += r.again[at] && r.live[at];
  return n;
}

}  // namespace

Rematerialised rematerialise(const Recording& r, const StepOptions& options, const Target& target) {
  Rematerialised out;
  const auto now = [&]() -> const Recording& { return out.recording ? *out.recording : r; };
  Schedule s = make_schedule(r, options.fuse, target);
  if (options.fuse && options.rematerialise) {
    const std::vector<Again> all = Chooser(r, s).fewer_bytes();
    if (!all.empty()) {
      auto with = Rewriter(r).run(all);
      Schedule then = make_schedule(*with, options.fuse, target);
      const double saved = moved(r, s) - moved(*with, then);
      if (saved > 0 && kernels(then) <= kernels(s)) {
        out.bytes = saved;
        out.recording = std::move(with);
        s = std::move(then);
      }
    }
  }
  if (options.memory_budget) {
    out.arena = out.arena_before = plan_memory(now(), s).arena_bytes;
    std::set<uint32_t> banned;  // Tried before. Storages keep their numbers.
    for (int round = 0; round < 256 && out.arena > options.memory_budget; ++round) {
      const auto excess = static_cast<int64_t>(out.arena - options.memory_budget);
      const std::vector<Again> all = Chooser(now(), s).less_memory(banned, excess);
      if (all.empty()) break;
      auto with = Rewriter(now()).run(all);
      Schedule then = make_schedule(*with, options.fuse, target);
      const size_t arena = plan_memory(*with, then).arena_bytes;
      if (arena > out.arena) continue;  // Not less may lead to less: several groups are as full.
      out.arena = arena;
      out.recording = std::move(with);
      s = std::move(then);
    }
  }
  out.instrs = out.recording ? repeated(*out.recording) : 0;
  out.schedule = std::move(s);
  return out;
}

}  // namespace brrr::graph
