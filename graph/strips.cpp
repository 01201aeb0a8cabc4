// Finds strips: neighbouring groups that can run part by part. Storages that several of them use
// are cut alike: if one of them writes a storage, part p of every operand on it lies in the p-th of
// equal pieces. Exempt are storages that are only read, and a result over all rows that no other
// group of the strip uses.
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

// Tries up to kPartsTried times the parts that the largest kernel needs: some divide more kernels.
constexpr int64_t kPartsTried = 4, kMostParts = 256;

// A window on a storage that a kernel accesses. Part p of it is the p-th slice of dim `cut`; a
// negative `cut` (Cut) means that it is not divided.
struct Reach {
  uint32_t storage;
  bool write;
  int64_t item, offset;
  IntList sizes, strides;
  int cut;
};

class StripFinder {
 public:
  StripFinder(const Recording& r, Schedule& s) : r_(r), s_(s) {
    for (uint32_t g = 0; g < s.groups.size(); ++g) {
      kernels_.push_back(kernel(s.groups[g]));
      const auto all = reach(g, 1);
      if (!all || divided_bytes(*all) <= largest_bytes_) continue;
      largest_ = g;
      largest_bytes_ = divided_bytes(*all);
    }
  }

  void run(int64_t part_bytes) {
    // Worth: bytes saved, less for larger parts. Somewhat larger ones beat half as many kernels.
    Candidate best;
    double most = 0;
    const int64_t wanted = (largest_bytes_ + part_bytes - 1) / part_bytes;
    const int64_t most_parts = wanted > 1 ? std::min(kPartsTried * wanted, kMostParts) : 0;
    for (int64_t parts = 2; parts <= most_parts; ++parts) {
      if (!reach(largest_, parts)) continue;
      Candidate candidate = strips(parts);
      const double large = static_cast<double>(wanted) / static_cast<double>(parts);
      const double worth = candidate.bytes / std::max(1.0, large);
      if (worth > most) most = worth, best = std::move(candidate);
    }
    if (best.strips.all.empty()) return;
    // Halve the parts if what each reads in full, mostly weights, is at most an eighth of its own.
    Candidate halves = strips(2 * best.strips.all[0].parts);
    if (halves.bytes >= best.bytes && 8 * halves.full_bytes <= halves.own) best = std::move(halves);
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
    std::vector<Reach> reach;                     // Of a generated kernel.
    int64_t extent = 0;                           // Of a generated kernel; 0: it cannot be cut.
    std::unique_ptr<LibraryCall> call = nullptr;  // Of a library kernel that can be cut.
    std::map<uint32_t, bool> touched = {};        // Storages used, and whether they are written.
    std::vector<uint32_t> checked = {};           // Storages of values that are checked.
    bool no_side_effects = true;                  // No value checks, no communication.
    bool writes_external = false;
  };

  // Bytes that are divided among the parts.
  static int64_t divided_bytes(const std::vector<Reach>& all) {
    int64_t bytes = 0;
    for (const Reach& x : all) bytes += x.cut >= 0 ? numel_of(x.sizes) * x.item : 0;
    return bytes;
  }
  // Bytes that every part reads in full.
  static int64_t full_bytes(const std::vector<Reach>& all) {
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
      k.no_side_effects &= !i.op->check_values && !i.op->communicates;
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

  // The windows of the group's kernel; nothing if it cannot be cut into so many parts.
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

  // Whether part p of the window lies in the p-th of equal pieces of the storage.
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
    // A part must not read more bytes in full than it has of its own.
    if (!all || full_bytes(*all) > divided_bytes(*all) / parts) return false;
    // Checked values have to exist before the first part runs, so the strip must not write them.
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

  // Whether `may(use, write)` is true of every storage that the group shares with these uses.
  bool all_of(uint32_t group, const Uses& uses, const auto& may) const {
    return std::ranges::all_of(kernels_[group].touched, [&](const auto& t) {
      const auto use = uses.find(t.first);
      return use == uses.end() || may(use->second, t.second);
    });
  }
  // Whether the group has no dependence with groups of these uses.
  bool passes(uint32_t group, const Uses& uses) const {
    return all_of(group, uses, [](const Use& use, bool write) { return !write && !use.written; });
  }
  bool can_run_before(uint32_t group, const Uses& uses) const {
    const Kernel& k = kernels_[group];
    return k.no_side_effects && passes(group, uses) && !k.writes_external;
  }
  // Whether the group can run after the strip: no result that it uses is cut to one part.
  bool can_run_after(uint32_t group, const Uses& uses) const {
    return kernels_[group].no_side_effects &&
           all_of(group, uses, [](const Use& use, bool) { return use.uneven || !use.written; });
  }

  // The groups in a new order, and the strips by their positions in it.
  struct Candidate {
    std::vector<uint32_t> order;
    Strips strips;
    double bytes = 0;                 // Of storages that hold one part at a time.
    int64_t full_bytes = 0, own = 0;  // Bytes that a part's kernels move: in full, and its share.
  };
  // Extends strips greedily; groups that cannot be cut move before or after a strip, or end it.
  Candidate strips(int64_t parts) const {
    Candidate candidate;
    candidate.strips.home.assign(r_.storages.size(), kNone);
    const auto n = static_cast<uint32_t>(s_.groups.size());
    for (uint32_t g = 0; g < n;) {
      Uses uses, later;
      std::vector<uint32_t> before, in, after;
      for (; g < n; ++g) {
        if (passes(g, later) && add(g, parts, uses)) {
          in.push_back(g);
        } else if (!in.empty() && passes(g, later) && can_run_before(g, uses)) {
          before.push_back(g);
        } else if (!in.empty() && can_run_after(g, uses)) {
          after.push_back(g);
          for (const auto& [st, write] : kernels_[g].touched) later[st].written |= write;
        } else {
          break;
        }
      }
      if (in.empty()) before.push_back(g++);
      std::vector<uint32_t>& order = candidate.order;
      order.insert(order.end(), before.begin(), before.end());
      const auto first = static_cast<uint32_t>(order.size());
      order.insert(order.end(), in.begin(), in.end());
      const auto last = static_cast<uint32_t>(order.size()) - 1;
      order.insert(order.end(), after.begin(), after.end());
      const double bytes = assign_homes(in, uses, candidate.strips);
      if (bytes > 0) candidate.strips.all.push_back({first, last, parts});
      for (size_t k = 0; bytes > 0 && k < in.size(); ++k) {
        const auto all = *reach(in[k], parts);
        candidate.full_bytes += full_bytes(all);
        candidate.own += divided_bytes(all) / parts;
      }
      candidate.bytes += bytes;
    }
    return candidate;
  }

  // Sets `home` of the storages that only the new strip's groups use; returns their bytes.
  double assign_homes(const std::vector<uint32_t>& in, const Uses& uses, Strips& strips) const {
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

// By group: bytes that a call in a strip can keep from part to part.
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
  StripFinder(r, cut).run(part_bytes);
  if (cut.strips.all.empty()) return;
  // Storages that a strip does not cut are live throughout it: the arena need not become smaller.
  const size_t whole = plan_memory(r, s).arena_bytes, parts = plan_memory(r, cut).arena_bytes;
  if (parts >= whole) return;
  // What first parts compute for all parts may take half of the bytes saved.
  Schedule keeping = cut;
  keeping.strips.kept = kept_bytes(r, cut);
  const size_t with = plan_memory(r, keeping).arena_bytes;
  s = std::move(2 * with <= whole + parts ? keeping : cut);
}

}  // namespace brrr::graph
