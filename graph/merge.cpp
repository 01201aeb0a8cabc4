// Merges groups of ops that can share a kernel, in the order in which they will run. Of two groups
// that share values, one moves to the place of the other if no dependence with a group in between
// forbids it; then they merge, and values pass between them in registers. First each op merges into
// an earlier group, so that one pass over memory serves both; then groups merge with producers,
// which also finds those that began apart: a * 2 and b * 3 share nothing, but their sum reads both.
// Each move respects all dependences, so that no cycle can arise. Last of all, groups that do the
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
    renumber();
  }

  void merge() {
    merge_into_earlier();
    merge_with_producers();
    renumber();
    for (const Group& g : groups_) {
      const Instr& i = r_.instrs[g.instrs[0]];
      if (g.fused || is_host_data(i)) continue;
      const int64_t bytes = scratch_bytes(make_call(r_, i, {})->call);
      if (bytes > 0) scratch_.emplace_back(g.instrs[0], bytes);
    }
    // Now it is known which values pass in registers, and so the peak of live bytes.
    compute_live_bytes();
    merge_with_producers();
    renumber();
    live_bytes_.clear();
  }

  // Gathers groups with equal keys into one, at the place of the last that the others can move to.
  void gather() {
    std::map<std::string, size_t> known;
    std::vector<std::vector<uint32_t>> alike;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      const bool one = groups_[g].parts.size() == 1;
      std::string key = one ? part_key(r_, groups_[g].parts[0]) : "";
      if (key.empty()) continue;
      const auto [at, first] = known.try_emplace(std::move(key), alike.size());
      if (first) alike.emplace_back();
      alike[at->second].push_back(g);
    }
    for (const std::vector<uint32_t>& all : alike) {
      uint32_t a = all[0];
      Reach of_a = reach(a);
      for (const uint32_t b : std::span(all).subspan(1)) {
        const Reach of_b = reach(b);
        const bool down = of_a.last > b && !grows(a, a, b);
        const bool up = !down && of_b.first <= a && !is_too_early(a, b) && !grows(b, a, b);
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
    renumber();
  }

 private:
  void renumber() {
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

  // Live bytes by group: lasting results from their first write on, no values in registers, and the
  // scratch memory of library calls.
  void compute_live_bytes() {
    live_bytes_.assign(groups_.size() + 1, 0);
    for (const auto& [at, bytes] : scratch_) {
      live_bytes_[s_.group_of[at]] += bytes;
      live_bytes_[s_.group_of[at] + 1] -= bytes;
    }
    for (uint32_t st = 0; st < r_.storages.size(); ++st) {
      const StorageInfo& info = r_.storages[st];
      if (info.origin == Origin::External || r_.accesses[st].empty()) continue;
      auto [first, last] = s_.life(r_, st);
      if (!r_.lasting[st] && first == last && groups_[first].fused) continue;
      if (r_.lasting[st]) last = static_cast<uint32_t>(groups_.size()) - 1;
      live_bytes_[first] += static_cast<int64_t>(info.bytes);
      live_bytes_[last + 1] -= static_cast<int64_t>(info.bytes);
    }
    std::partial_sum(live_bytes_.begin(), live_bytes_.end(), live_bytes_.begin());
    peak_bytes_ = *std::ranges::max_element(live_bytes_);
  }

  // Merges each instruction into the first group whose pass over memory serves it, too.
  void merge_into_earlier() {
    // Recomputing instructions must not merge into earlier groups: that would keep the values.
    uint32_t from = 0;
    bool anew = false;
    for (uint32_t b = 0; b < groups_.size(); ++b) {
      const uint32_t at = groups_[b].instrs[0];
      const bool before = std::exchange(anew, !r_.again.empty() && r_.again[at]);
      if (anew != before) from = anew ? b : 0;
      if (!groups_[b].fused) continue;
      const uint32_t first = reach(b).first;
      std::ranges::any_of(groups_sharing(at), [&](uint32_t a) {
        return a >= from && a + 1 >= first && merge(a, b, false);
      });
    }
  }

  // Earlier groups that access a value of the instruction. A shared scalar does not count if both
  // only read it, nor for instructions that a table of operands makes one kernel anyway.
  std::vector<uint32_t> groups_sharing(uint32_t at) const {
    std::vector<uint32_t> groups;
    r_.each_operand(r_.instrs[at], [&](uint32_t value, bool write) {
      const bool is_scalar = r_.value(value).numel == 1;
      // A weight may have thousands of uses: look at the last ones.
      constexpr ptrdiff_t most = 64;
      const std::vector<Access>& all = r_.accesses[r_.value(value).storage];
      const auto end = std::ranges::lower_bound(all, at, {}, &Access::instr);
      for (const Access& a : std::span(std::max(all.begin(), end - most), end)) {
        if (is_scalar && (!(write || a.write) || s_.alike[at])) continue;
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
        // A scalar in a register is no reason to leave the table that makes one kernel of `alike`.
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
    if (!down && (!can_move(b, a, b) || is_too_early(a, b))) return false;
    down ? move(a, b) : move(b, a);
    groups_[down ? b : a].domain = domain;
    if (!live_bytes_.empty()) compute_live_bytes();
    return true;
  }

  // Whether at a's place b would write an external before something that can fail, which would have
  // to undo the write.
  bool is_too_early(uint32_t a, uint32_t b) const {
    const auto writes = [&](uint32_t at) { return writes_external(r_, r_.instrs[at]); };
    const auto fails = [&](uint32_t at) { return can_fail(r_, r_.instrs[at]); };
    const auto between = std::span(groups_).subspan(a, b - a);
    return std::ranges::any_of(groups_[b].instrs, writes) &&
           std::ranges::any_of(
               between, [&](const Group& g) { return std::ranges::any_of(g.instrs, fails); });
  }

  // The range in which a group can move: the first place after all groups that it depends on, and
  // the first group that depends on it.
  struct Reach {
    uint32_t first = 0, last = kNone;
  };
  Reach reach(uint32_t g) const {
    Reach all;
    std::vector<Access> own;
    for (uint32_t st : storages_[g]) {
      if (!r_.written[st]) continue;  // Without dependences, and may have thousands of uses.
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

  // Whether `g`, which is a or b, may move past the groups between them: it has no dependences with
  // those, and live bytes there do not grow, or stay within the peak once that is known.
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
    if (growth <= kNegligibleBytes) return false;
    const auto empty = [](const Group& g) { return g.instrs.empty(); };
    const bool adjacent = std::all_of(groups_.begin() + a + 1, groups_.begin() + b, empty);
    if (adjacent || live_bytes_.empty()) return !adjacent;
    const auto between = std::span(live_bytes_).subspan(a, b + 1 - a);
    return *std::ranges::max_element(between) + growth > peak_bytes_;
  }

  void move(uint32_t from, uint32_t to) {
    Group &x = groups_[from], &y = groups_[to];
    for (uint32_t at : x.instrs) s_.group_of[at] = to;
    unite(y.instrs, x.instrs);
    unite(storages_[to], storages_[from]);
    x.fused = false;
  }

  // Merges `from` into `to`; both are sorted.
  static void unite(std::vector<uint32_t>& to, std::vector<uint32_t>& from) {
    std::vector<uint32_t> all;
    all.reserve(to.size() + from.size());
    std::ranges::set_union(to, from, std::back_inserter(all));
    to = std::move(all);
    from = std::vector<uint32_t>();  // Frees the memory: there are as many groups as ops.
  }

  const Recording& r_;
  const Target& target_;
  Schedule& s_;
  std::vector<Group>& groups_;
  std::vector<std::vector<uint32_t>> storages_;        // By group: those that it uses, sorted.
  std::vector<std::pair<uint32_t, int64_t>> scratch_;  // Instructions and their scratch bytes.
  std::vector<int64_t> live_bytes_;                    // Live bytes by group; empty: not known.
  int64_t peak_bytes_ = 0;                             // Their peak.
};

// Splits the instructions of a fused group into parts: instructions stay together if they use a
// storage that one of them writes, or one of the size of the whole space.
std::vector<Part> independent_parts(const Recording& r, const Group& g) {
  if (g.domain.row) return {{g.instrs, g.domain}};
  const int64_t n = numel_of(g.domain.space);
  std::set<uint32_t> binding;
  r.each_access(g.instrs, [&](const Access& a) {
    const Value& v = r.value(a.value);
    if (a.write || (v.numel == n && n > 1)) binding.insert(v.storage);
  });
  std::map<uint32_t, uint32_t> part;   // By instruction: the first one of its part.
  std::map<uint32_t, uint32_t> first;  // By storage: the first instruction that uses it.
  for (uint32_t at : g.instrs) part[at] = at;
  r.each_access(g.instrs, [&](const Access& a) {
    const uint32_t st = r.value(a.value).storage;
    if (!binding.count(st)) return;
    const uint32_t x = part[first.try_emplace(st, a.instr).first->second], y = part[a.instr];
    if (x == y) return;
    for (auto& [at, p] : part) p = p == x || p == y ? std::min(x, y) : p;
  });
  std::vector<Part> all;
  std::map<uint32_t, size_t> numbers;  // Part numbers, by the part's first instruction.
  for (const auto& [at, p] : part) {
    const size_t k = numbers.try_emplace(p, all.size()).first->second;
    if (k == all.size()) all.push_back({{}, g.domain});
    all[k].instrs.push_back(at);
  }
  return all;
}

}  // namespace

std::string part_key(const Recording& r, const Part& p) {
  std::string key;
  auto add = [&](int64_t x) { key += std::to_string(x) + ','; };
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
  return key;
}

void merge_groups(const Recording& r, Schedule& s, bool fuse, const Target& target) {
  Merger merger(r, s, target);
  if (fuse) merger.merge();
  for (Group& g : s.groups) {
    if (g.fused) g.parts = independent_parts(r, g);
  }
  merger.gather();
  // A single instruction uses its library kernel, unless a generated one is faster.
  for (Group& g : s.groups) {
    const Instr& first = r.instrs[g.instrs[0]];
    g.fused =
        g.fused && (g.instrs.size() > 1 ||
                    (first.op->pointwise ? !reads_transposed(r, first)
                                         : group_bytes_unfused(r, g) >= target.worth_own_kernel));
  }
}

}  // namespace brrr::graph
