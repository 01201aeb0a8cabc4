// Which neighbours may be run part by part. What several of them touch has to be cut alike: of a
// storage that one of them writes, part p of every operand lies in the p-th of so many equal pieces
// of it. What is only read is free, and so is a result over all rows that no other of them sees.
#include <algorithm>
#include <map>
#include <optional>

#include "graph/schedule.h"
#include "ops/program/cpu.h"

namespace brrr::graph {

const Strip* Strips::of(uint32_t group) const {
  const auto at = std::ranges::lower_bound(all, group, {}, &Strip::last);
  return at == all.end() || group < at->first ? nullptr : &*at;
}

std::pair<uint32_t, uint32_t> Schedule::stay(const Recording& r, uint32_t storage) const {
  const auto [first, last] = life(r, storage);
  if (first == kNone || strips.parts(storage) > 1) return {first, last};
  const Strip *const from = strips.of(first), *const to = strips.of(last);
  return {from ? from->first : first, to ? to->last : last};
}

namespace {

// Parts beyond what the largest kernel asks for, to find a number that divides more of them.
constexpr int64_t kMore = 4, kMostParts = 256;

// What a kernel has in memory: a window on a storage. Part p of it is the p-th share of dim `cut`;
// below 0 (Cut) there are no parts of it.
struct Reach {
  uint32_t storage;
  bool write;
  int64_t item, offset;
  IntList sizes, strides;
  int cut;
};

class Finder {
 public:
  Finder(const Recording& r, Schedule& s) : r_(r), s_(s) {
    for (uint32_t g = 0; g < s.groups.size(); ++g) {
      kernels_.push_back(kernel(s.groups[g]));
      const auto all = reach(g, 1);
      if (!all || shared_out(*all) <= largest_bytes_) continue;
      largest_ = g;
      largest_bytes_ = shared_out(*all);
    }
  }

  void run(int64_t part_bytes) {
    // Somewhat larger parts beat a strip of half as many kernels.
    Found best;
    double most = 0;
    const int64_t wanted = (largest_bytes_ + part_bytes - 1) / part_bytes;
    const int64_t most_parts = wanted > 1 ? std::min(kMore * wanted, kMostParts) : 0;
    for (int64_t parts = 2; parts <= most_parts; ++parts) {
      if (!reach(largest_, parts)) continue;
      Found found = strips(parts);
      const double large = static_cast<double>(wanted) / static_cast<double>(parts);
      const double worth = found.bytes / std::max(1.0, large);
      if (worth > most) most = worth, best = std::move(found);
    }
    if (best.strips.all.empty()) return;
    // Halves of these, if what each part needs beside its own, weights as a rule, is little.
    Found halves = strips(2 * best.strips.all[0].parts);
    if (halves.bytes >= best.bytes && 8 * halves.common <= halves.own) best = std::move(halves);
    s_.reorder(best.order);
    s_.strips = std::move(best.strips);
    for (const Strip& strip : s_.strips.all) {
      for (uint32_t g = strip.first; g <= strip.last; ++g) {
        s_.groups[g].fused = !s_.groups[g].parts.empty();
      }
    }
  }

 private:
  struct Kernel {
    std::vector<Reach> reach;                     // Of a generated one.
    int64_t extent = 0;                           // Of its launch; 0: it cannot be cut.
    std::unique_ptr<LibraryCall> call = nullptr;  // Of the library's, that can be cut.
    std::map<uint32_t, bool> touched = {};        // Storages, and whether they are written.
    std::vector<uint32_t> checked = {};           // Storages of values that are checked.
    bool quiet = true;                            // It does no more than its results.
    bool writes_external = false;
  };

  // Bytes of which each part has its share.
  static int64_t shared_out(const std::vector<Reach>& all) {
    int64_t bytes = 0;
    for (const Reach& x : all) bytes += x.cut >= 0 ? numel_of(x.sizes) * x.item : 0;
    return bytes;
  }
  // Bytes that every part needs.
  static int64_t common(const std::vector<Reach>& all) {
    int64_t bytes = 0;
    for (const Reach& x : all) {
      int64_t own = x.cut < 0 ? x.item : 0;
      for (int d = 0; d < x.sizes.size(); ++d) own *= x.strides[d] ? x.sizes[d] : 1;
      bytes += own;
    }
    return bytes;
  }

  Kernel kernel(const Group& g) {
    Kernel k;
    for (uint32_t at : g.instrs) {
      const Instr& i = r_.instrs[at];
      r_.each_operand(
          i, [&](uint32_t value, bool write) { k.touched[r_.value(value).storage] |= write; });
      k.writes_external |= writes_external(r_, i);
      k.quiet &= !i.op->check_values && !i.op->reaches_out;
      if (!i.op->check_values) continue;
      for (uint32_t id : checked_values(r_, i)) k.checked.push_back(r_.value(id).storage);
    }
    const Instr& i = r_.instrs[g.instrs[0]];
    if (g.parts.empty() && i.op->cut) k.call = make_call(r_, i, {});
    if (g.parts.size() == 1) {
      const GroupProgram made = program_of(r_, g.parts[0], s_);
      const program::Program& p = made.program;
      const program::CpuKernel text = program::cpu_kernel(p);
      if (text.extent * text.unit == p.space.numel()) k.extent = text.extent;
      const auto dims = static_cast<size_t>(p.space.ndim);
      for (size_t w = 0; w < p.windows.size(); ++w) {
        const program::Window& x = p.windows[w];
        if (!x.in_memory()) continue;
        const Value& v = r_.value(made.values[w]);
        k.reach.push_back({v.storage, x.stored, x.item(), v.offset, IntList(p.space.size, dims),
                           IntList(x.stride, dims), x.stride[0] ? 0 : kWhole});
      }
    }
    return k;
  }

  // What the group's parts reach; nothing if it cannot be cut so.
  std::optional<std::vector<Reach>> reach(uint32_t group, int64_t parts) const {
    const Kernel& k = kernels_[group];
    if (k.extent > 0) {
      const bool even =
          k.extent % parts == 0 && !k.reach.empty() && k.reach[0].sizes[0] % parts == 0;
      return even ? std::optional(k.reach) : std::nullopt;
    }
    if (!k.call) return std::nullopt;
    std::vector<Reach> all;
    const Instr& i = r_.instrs[s_.groups[group].instrs[0]];
    for (int n = 0; n < i.n_in + i.n_out; ++n) {
      const uint32_t id = r_.all(i)[n];
      if (id == kNone) continue;
      const Value& v = r_.value(id);
      const int cut = i.op->cut(k.call->call, n);
      if (cut == kUncut || (cut >= 0 && v.sizes[cut] % parts != 0)) return std::nullopt;
      all.push_back(
          {v.storage, n >= i.n_in, v.item(), v.offset, v.size_list(), v.stride_list(), cut});
    }
    return all;
  }

  // Whether each part lies in its piece of the storage.
  bool is_even(const Reach& x, int64_t parts) const {
    const auto bytes = static_cast<int64_t>(r_.storages[x.storage].bytes);
    if (x.cut < 0 || bytes % parts != 0) return false;
    int64_t last = x.offset;
    for (int d = 0; d < x.sizes.size(); ++d) {
      const int64_t own = d == x.cut ? x.sizes[d] / parts : x.sizes[d];
      last += (own - 1) * x.strides[d];
    }
    const int64_t step = x.strides[x.cut] * (x.sizes[x.cut] / parts) * x.item;
    return step == bytes / parts && x.offset >= 0 && (last + 1) * x.item <= step;
  }

  struct Use {
    bool written = false, uneven = false;
    uint32_t groups = 0, last = kNone;
  };
  using Uses = std::map<uint32_t, Use>;

  bool add(uint32_t group, int64_t parts, Uses& uses) const {
    const auto all = reach(group, parts);
    // What all parts read anew must not be more than what is their own.
    if (!all || common(*all) > shared_out(*all) / parts) return false;
    // Values that are checked have to be there before the first part.
    const bool checks_own = std::ranges::any_of(kernels_[group].checked, [&](uint32_t st) {
      const auto use = uses.find(st);
      return use != uses.end() && use->second.written;
    });
    if (checks_own) return false;
    Uses with = uses;
    for (const Reach& x : *all) {
      Use& use = with[x.storage];
      use.groups += use.last != group;
      use.last = group;
      use.written |= x.write;
      use.uneven |= !is_even(x, parts);
      if (use.written && use.uneven && use.groups > 1) return false;
    }
    uses = std::move(with);
    return true;
  }

  // Whether `may` says so of all that the group touches.
  bool all_of(uint32_t group, const Uses& uses, const auto& may) const {
    return std::ranges::all_of(kernels_[group].touched, [&](const auto& t) {
      const auto use = uses.find(t.first);
      return use == uses.end() || may(use->second, t.second);
    });
  }
  // Whether the group may change places with those that have these uses, by what they touch.
  bool passes(uint32_t group, const Uses& uses) const {
    return all_of(group, uses, [](const Use& use, bool write) { return !write && !use.written; });
  }
  bool goes_before(uint32_t group, const Uses& uses) const {
    const Kernel& k = kernels_[group];
    return k.quiet && passes(group, uses) && !k.writes_external;
  }
  // What needs all parts of results, and nothing else that could be there for a part only.
  bool goes_after(uint32_t group, const Uses& uses) const {
    return kernels_[group].quiet &&
           all_of(group, uses, [](const Use& use, bool) { return use.uneven || !use.written; });
  }

  // Groups in the order in which they are to run; the strips, by their places in it.
  struct Found {
    std::vector<uint32_t> order;
    Strips strips;
    double bytes = 0;             // Of values that are never whole.
    int64_t common = 0, own = 0;  // Bytes that a part's kernels move: of all parts, and its own.
  };
  // From each group on as many as may be, those aside that have to be whole and can come before or
  // after.
  Found strips(int64_t parts) const {
    Found found;
    found.strips.home.assign(r_.storages.size(), kNone);
    const auto n = static_cast<uint32_t>(s_.groups.size());
    for (uint32_t g = 0; g < n;) {
      Uses uses, later;
      std::vector<uint32_t> before, in, after;
      for (; g < n; ++g) {
        if (passes(g, later) && add(g, parts, uses)) {
          in.push_back(g);
        } else if (!in.empty() && passes(g, later) && goes_before(g, uses)) {
          before.push_back(g);
        } else if (!in.empty() && goes_after(g, uses)) {
          after.push_back(g);
          for (const auto& [st, write] : kernels_[g].touched) later[st].written |= write;
        } else {
          break;
        }
      }
      if (in.empty()) before.push_back(g++);
      std::vector<uint32_t>& order = found.order;
      order.insert(order.end(), before.begin(), before.end());
      const auto first = static_cast<uint32_t>(order.size());
      order.insert(order.end(), in.begin(), in.end());
      const auto last = static_cast<uint32_t>(order.size()) - 1;
      order.insert(order.end(), after.begin(), after.end());
      const double bytes = house(in, uses, found.strips);
      if (bytes > 0) found.strips.all.push_back({first, last, parts});
      for (size_t k = 0; bytes > 0 && k < in.size(); ++k) {
        const auto all = *reach(in[k], parts);
        found.common += common(all);
        found.own += shared_out(all) / parts;
      }
      found.bytes += bytes;
    }
    return found;
  }

  // Notes what the groups of the strip to come alone need; its bytes.
  double house(const std::vector<uint32_t>& in, const Uses& uses, Strips& strips) const {
    double bytes = 0;
    for (const auto& [st, use] : uses) {
      const bool inside = std::ranges::all_of(r_.accesses[st], [&](const Access& a) {
        return std::ranges::binary_search(in, s_.group_of[a.instr]);
      });
      if (!inside || use.uneven || r_.lasting[st]) continue;
      strips.home[st] = static_cast<uint32_t>(strips.all.size());
      bytes += static_cast<double>(r_.storages[st].bytes);
    }
    return bytes;
  }

  const Recording& r_;
  Schedule& s_;
  std::vector<Kernel> kernels_;
  uint32_t largest_ = 0;
  int64_t largest_bytes_ = 0;
};

// What the calls of strips can keep from part to part, by group.
std::vector<int64_t> kept_bytes(const Recording& r, const Schedule& s) {
  std::vector<int64_t> all(s.groups.size());
  for (const Strip& strip : s.strips.all) {
    for (uint32_t g = strip.first; g <= strip.last; ++g) {
      const Instr& i = r.instrs[s.groups[g].instrs[0]];
      if (s.groups[g].fused || !i.op->keeps) continue;
      all[g] = i.op->keeps(make_call(r, i, {}, {&s.strips, 0, strip.parts})->call);
    }
  }
  return all;
}

}  // namespace

void find_strips(const Recording& r, Schedule& s, int64_t part_bytes) {
  Schedule cut = s;
  Finder(r, cut).run(part_bytes);
  if (cut.strips.all.empty()) return;
  // What all parts of a strip need is there for all of it.
  const size_t whole = plan_memory(r, s).arena_bytes, parts = plan_memory(r, cut).arena_bytes;
  if (parts >= whole) return;
  // What a first part makes for all may take half of what is won.
  Schedule keeping = cut;
  keeping.strips.kept = kept_bytes(r, cut);
  const size_t with = plan_memory(r, keeping).arena_bytes;
  s = std::move(2 * with <= whole + parts ? keeping : cut);
}

}  // namespace brrr::graph
