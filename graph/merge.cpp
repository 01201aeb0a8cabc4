// Groups of ops that share a kernel, in the order in which they will run. A group moves to the
// place of an earlier one that it shares values with, or that one to its place, if nothing in
// between stands in the way; then they are one, and what passes from one to the other does so in a
// register. First each op joins what is there before it, so that one pass over memory serves both;
// then groups that began apart follow: a * 2 and b * 3 share nothing, but their sum reads both.
// Every dependence is kept at each move, and no cycle can arise. Last of all, groups that do the
// same to different tensors become parts of one.
#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "graph/cost.h"

namespace brrr::graph {

namespace {

class Merger {
 public:
  Merger(const Recording& r, Schedule& s, const Target& target)
      : r_(r), target_(target), s_(s), groups_(s.groups) {
    number();
  }

  void merge() {
    join_earlier();
    merge_with_producers();
    number();
    for (const Group& g : groups_) {
      const Instr& i = r_.instrs[g.instrs[0]];
      if (g.fused || is_host_data(i)) continue;
      const int64_t bytes = scratch_bytes(make_call(r_, i, {})->call);
      if (bytes > 0) scratch_.emplace_back(g.instrs[0], bytes);
    }
    // What passes in registers is known now, and how much is alive at most.
    find_alive();
    merge_with_producers();
    number();
    alive_.clear();
  }

  // One group of all that are alike, at the place of the last that the others can move to.
  void gather() {
    std::map<std::string, size_t> known;
    std::vector<std::vector<uint32_t>> alike;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      const bool one = groups_[g].parts.size() == 1;
      std::string like = one ? likeness(r_, groups_[g].parts[0]) : "";
      if (like.empty()) continue;
      const auto [at, first] = known.try_emplace(std::move(like), alike.size());
      if (first) alike.emplace_back();
      alike[at->second].push_back(g);
    }
    for (const std::vector<uint32_t>& all : alike) {
      uint32_t a = all[0];
      Reach of_a = reach(a);
      for (const uint32_t b : std::span(all).subspan(1)) {
        const Reach of_b = reach(b);
        const bool down = of_a.last > b && !grows(a, a, b);
        const bool up = !down && of_b.first <= a && !is_early(a, b) && !grows(b, a, b);
        of_a = down || up ? Reach{std::max(of_a.first, of_b.first), std::min(of_a.last, of_b.last)}
                          : of_b;
        if (up) {
          gather(b, a);
        } else {
          if (down) gather(a, b);
          a = b;
        }
      }
    }
    number();
  }

 private:
  void number() {
    std::erase_if(groups_, [](const Group& g) { return g.instrs.empty(); });
    s_.number_groups(r_.instrs.size());
    storages_.clear();
    for (const Group& g : groups_) {
      std::vector<uint32_t>& list = storages_.emplace_back();
      r_.each_access(g.instrs, [&](const Access& a) { list.push_back(r_.value(a.value).storage); });
      distinct(list);
    }
  }

  void merge_with_producers() {
    for (uint32_t b = 0; b < groups_.size(); ++b) {
      while (groups_[b].fused && merge_with_a_producer(b)) {}
    }
  }

  // By group, as in eager mode: results from when they are written, what passes in registers never,
  // and what library calls take beside.
  void find_alive() {
    alive_.assign(groups_.size() + 1, 0);
    for (const auto& [at, bytes] : scratch_) {
      alive_[s_.group_of[at]] += bytes;
      alive_[s_.group_of[at] + 1] -= bytes;
    }
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      const StorageInfo& info = r_.storages[st];
      if (info.origin == Origin::External || r_.accesses[st].empty()) continue;
      auto [first, last] = s_.life(r_, st);
      if (!r_.lasting[st] && first == last && groups_[first].fused) continue;
      if (r_.lasting[st]) last = static_cast<uint32_t>(groups_.size()) - 1;
      alive_[first] += static_cast<int64_t>(info.bytes);
      alive_[last + 1] -= static_cast<int64_t>(info.bytes);
    }
    std::partial_sum(alive_.begin(), alive_.end(), alive_.begin());
    most_ = *std::ranges::max_element(alive_);
  }

  // Each instruction moves to the first group whose pass over memory serves it, too.
  void join_earlier() {
    // What makes values anew shares no kernel with what came before: it would be as if they were
    // kept.
    uint32_t from = 0;
    bool anew = false;
    for (uint32_t b = 0; b < groups_.size(); ++b) {
      const uint32_t at = groups_[b].instrs[0];
      const bool before = std::exchange(anew, !r_.again.empty() && r_.again[at]);
      if (anew != before) from = anew ? b : 0;
      if (!groups_[b].fused) continue;
      const uint32_t first = reach(b).first;
      std::ranges::any_of(sharing(at), [&](uint32_t a) {
        return a >= from && a + 1 >= first && merge(a, b, false);
      });
    }
  }

  // To read the same number is no reason to be one pass, where a table makes one kernel of those
  // that do.
  std::vector<uint32_t> sharing(uint32_t at) const {
    std::vector<uint32_t> groups;
    r_.each_operand(r_.instrs[at], [&](uint32_t value, bool write) {
      const bool number = r_.value(value).numel == 1;
      // Of the thousands of uses that a weight may have, the last.
      constexpr ptrdiff_t most = 64;
      const std::vector<Access>& all = r_.accesses[r_.value(value).storage];
      const auto end = std::ranges::lower_bound(all, at, {}, &Access::instr);
      for (const Access& a : std::span(std::max(all.begin(), end - most), end)) {
        if (number && (!(write || a.write) || s_.alike[at])) continue;
        if (apart(r_.value(a.value), r_.value(value))) continue;
        groups.push_back(group(a));
      }
    });
    return distinct(groups);
  }

  void gather(uint32_t from, uint32_t to) {
    move(from, to);
    std::ranges::move(std::exchange(groups_[from].parts, {}),
                      std::back_inserter(groups_[to].parts));
  }

  uint32_t group(const Access& a) const { return s_.group_of[a.instr]; }

  // The last group before b that wrote this value.
  uint32_t producer(uint32_t value, uint32_t b) const {
    uint32_t last = kNone;
    if (!r_.written[r_.value(value).storage]) return last;
    for (const Access& x : r_.accesses[r_.value(value).storage]) {
      const bool before = x.write && group(x) < b;
      if (before && r_.value(x.value).same_elements(r_.value(value))) last = group(x);
    }
    return last;
  }

  bool merge_with_a_producer(uint32_t b) {
    std::vector<uint32_t> tried;
    for (uint32_t at : groups_[b].instrs) {
      for (uint32_t id : r_.in(r_.instrs[at])) {
        if (id == kNone) continue;
        // To take a number over is no reason to leave the table that makes them one kernel.
        if (s_.alike[at] && r_.value(id).numel == 1) continue;
        const uint32_t a = producer(id, b);
        if (a == kNone || std::ranges::find(tried, a) != tried.end()) continue;
        if (merge(a, b)) return true;
        tried.push_back(a);
      }
    }
    return false;
  }

  bool merge(uint32_t a, uint32_t b, bool at_either = true) {
    Domain domain;
    const Group &x = groups_[a], &y = groups_[b];
    if (!x.fused || !y.fused ||
        !join(r_, target_, x.instrs, y.instrs, x.domain, y.domain, domain) ||
        !passes(r_, s_, a, b, domain) || splits_draws(r_, target_, x, y, domain) ||
        mixes_checks(r_, x, y) ||
        !kernel_size(r_, s_, a, b).allowed(domain.space.size(), target_)) {
      return false;
    }
    const bool down = at_either && can_move(a, a, b);
    if (!down && (!can_move(b, a, b) || is_early(a, b))) return false;
    down ? move(a, b) : move(b, a);
    groups_[down ? b : a].domain = domain;
    if (!alive_.empty()) find_alive();
    return true;
  }

  // At a's place a write of b's would come before something that can fail, and have to be undone if
  // it does.
  bool is_early(uint32_t a, uint32_t b) const {
    const auto writes = [&](uint32_t at) { return writes_external(r_, r_.instrs[at]); };
    const auto fails = [&](uint32_t at) { return can_fail(r_, r_.instrs[at]); };
    const auto between = std::span(groups_).subspan(a, b - a);
    return std::ranges::any_of(groups_[b].instrs, writes) &&
           std::ranges::any_of(
               between, [&](const Group& g) { return std::ranges::any_of(g.instrs, fails); });
  }

  // The first place that a group could have behind all that it depends on, and the first that
  // depends on it.
  struct Reach {
    uint32_t first = 0, last = kNone;
  };
  Reach reach(uint32_t g) const {
    Reach all;
    std::vector<Access> own;
    for (uint32_t st : storages_[g]) {
      if (!r_.written[st]) continue;  // Of these there may be thousands of uses.
      own.clear();
      std::ranges::copy_if(r_.accesses[st], std::back_inserter(own),
                           [&](const Access& x) { return group(x) == g; });
      for (const Access& x : r_.accesses[st]) {
        const uint32_t at = group(x);
        const bool nearer = at < g ? at >= all.first : at > g && at < all.last;
        const auto conflicts = [&](const Access& y) { return r_.conflict(x, y); };
        if (nearer && std::ranges::any_of(own, conflicts))
          (at < g ? all.first = at + 1 : all.last = at);
      }
    }
    return all;
  }

  // Whether `g`, which is a or b, may pass what lies between them: nothing there depends on it, or
  // it on that, and no more bytes are alive there than before.
  bool can_move(uint32_t g, uint32_t a, uint32_t b) const {
    const Reach to = reach(g);
    return (g == a ? to.last >= b : to.first <= a + 1) && !grows(g, a, b);
  }

  bool grows(uint32_t g, uint32_t a, uint32_t b) const {
    int64_t growth = 0;
    for (uint32_t st : storages_[g]) {
      if (r_.lasting[st]) continue;
      uint32_t first = kNone, last = 0;  // Of the other groups that use it.
      for (const Access& x : r_.accesses[st]) {
        if (group(x) == g) continue;
        first = std::min(first, group(x));
        last = std::max(last, group(x));
      }
      const bool alive = g == a ? last >= b : first <= a;
      const bool then = g == a ? first < b : last > a;
      growth += (static_cast<int64_t>(then) - alive) * static_cast<int64_t>(r_.storages[st].bytes);
    }
    if (growth <= kLittleMemory) return false;
    const auto empty = [](const Group& g) { return g.instrs.empty(); };
    const bool adjacent = std::all_of(groups_.begin() + a + 1, groups_.begin() + b, empty);
    if (adjacent || alive_.empty()) return !adjacent;
    const auto between = std::span(alive_).subspan(a, b + 1 - a);
    return *std::ranges::max_element(between) + growth > most_;
  }

  void move(uint32_t from, uint32_t to) {
    Group &x = groups_[from], &y = groups_[to];
    for (uint32_t at : x.instrs) s_.group_of[at] = to;
    unite(y.instrs, x.instrs);
    unite(storages_[to], storages_[from]);
    x.fused = false;
  }

  // All of both in `to`; each rises, and so do they.
  static void unite(std::vector<uint32_t>& to, std::vector<uint32_t>& from) {
    std::vector<uint32_t> all;
    all.reserve(to.size() + from.size());
    std::ranges::set_union(to, from, std::back_inserter(all));
    to = std::move(all);
    from = std::vector<uint32_t>();  // Its memory, too: there are as many groups as ops.
  }

  const Recording& r_;
  const Target& target_;
  Schedule& s_;
  std::vector<Group>& groups_;
  std::vector<std::vector<uint32_t>> storages_;        // By group: those that it uses, each once.
  std::vector<std::pair<uint32_t, int64_t>> scratch_;  // Instructions, and bytes beside operands.
  std::vector<int64_t> alive_;                         // Bytes, by group; empty: not known yet.
  int64_t most_ = 0;                                   // Of them.
};

// The instructions of a fused group taken apart: together stay those that use a storage which one
// of them writes, or walks over.
std::vector<Part> independent_parts(const Recording& r, const Group& g) {
  if (g.domain.row) return {{g.instrs, g.domain}};
  const int64_t n = numel_of(g.domain.space);
  std::set<uint32_t> binding;
  r.each_access(g.instrs, [&](const Access& a) {
    const Value& v = r.value(a.value);
    if (a.write || (v.numel == n && n > 1)) binding.insert(v.storage);
  });
  std::map<uint32_t, uint32_t> part;   // By instruction: the first of its part.
  std::map<uint32_t, uint32_t> first;  // By storage: who uses it first.
  for (uint32_t at : g.instrs) part[at] = at;
  r.each_access(g.instrs, [&](const Access& a) {
    const uint32_t st = r.value(a.value).storage;
    if (!binding.count(st)) return;
    const uint32_t x = part[first.try_emplace(st, a.instr).first->second], y = part[a.instr];
    if (x == y) return;
    for (auto& [at, p] : part) p = p == x || p == y ? std::min(x, y) : p;
  });
  std::vector<Part> all;
  std::map<uint32_t, size_t> numbers;  // Of parts, by their first.
  for (const auto& [at, p] : part) {
    const size_t k = numbers.try_emplace(p, all.size()).first->second;
    if (k == all.size()) all.push_back({{}, g.domain});
    all[k].instrs.push_back(at);
  }
  return all;
}

}  // namespace

std::string likeness(const Recording& r, const Part& p) {
  std::string like;
  auto add = [&](int64_t x) { like += std::to_string(x) + ','; };
  const bool whole = p.domain.row == numel_of(p.domain.space);
  if (p.domain.exact || (p.domain.row && !whole)) return "";
  add(whole);
  std::map<uint32_t, int64_t> numbers;  // Storages, in the order of their first use.
  for (uint32_t at : p.instrs) {
    const Instr& i = r.instrs[at];
    add(reinterpret_cast<intptr_t>(i.op));
    add(i.into);
    for (int k = 0, word = 0; k < i.n_in + i.n_out; ++k) {
      const uint32_t id = r.all(i)[k];
      if (id == kNone) {
        add(i.attrs.dynamic >> word & 1 ? -1 : i.attrs.v[word]);
        ++word;
        continue;
      }
      const Value& v = r.value(id);
      add(static_cast<int>(v.dtype) * 8 + static_cast<int>(role(r, i, k, p.domain)));
      add(numbers.try_emplace(v.storage, numbers.size()).first->second);
    }
  }
  return like;
}

void merge_groups(const Recording& r, Schedule& s, bool fuse, const Target& target) {
  Merger merger(r, s, target);
  if (fuse) merger.merge();
  for (Group& g : s.groups) {
    if (g.fused) g.parts = independent_parts(r, g);
  }
  merger.gather();
  // What the library has a kernel for needs no other, unless one of its own is quicker.
  for (Group& g : s.groups) {
    const Instr& first = r.instrs[g.instrs[0]];
    g.fused = g.fused && (g.instrs.size() > 1 ||
                          (first.op->pointwise ? !reads_across(r, first)
                                               : bytes_apart(r, g) >= target.worth_own_kernel));
  }
}

}  // namespace brrr::graph
