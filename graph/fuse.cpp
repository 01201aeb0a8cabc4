// Pointwise fusion. Groups stand in the order in which they will run. An instruction may join a
// group if everything it depends on stands in an earlier group, or in the same one with exactly the
// same elements (then the value is passed on in a register). Joining so keeps every dependence by
// construction; no cycle can arise.
#include <algorithm>

#include "core/check.h"
#include "graph/schedule.h"
#include "ops/kinds/pointwise.h"

namespace brrr::graph {

namespace {

// Whether the instruction can be text at all.
bool fusible(const Recording& r, const Instr& i) {
  if (!i.op->pointwise) return false;
  const Value& o = r.value(r.out(i)[0]);
  if (o.numel == 0) return false;
  for (int k = 0; i.into && k < i.n_out; ++k) {
    const Value& out = r.value(r.out(i)[k]);
    for (int n = 0; n < i.n_in; ++n) {
      if (r.in(i)[n] == kNone) continue;
      const Value& in = r.value(r.in(i)[n]);
      // Reads what it overwrites in another order: the eager driver copies first.
      if (in.storage == out.storage && !in.same_elements(out)) return false;
    }
    for (int n = 0; n < k; ++n) {
      if (r.value(r.out(i)[n]).storage == out.storage) return false;
    }
  }
  return true;
}

struct Access {
  uint32_t value, group;
};

class Fuser {
 public:
  Fuser(const Recording& r, bool fuse, const Target& target)
      : r_(r),
        fuse_(fuse),
        target_(target),
        reads_(r.storages.size()),
        writes_(r.storages.size()),
        uses_left_(r.storages.size()) {}

  Schedule run() {
    const std::vector<bool> live = live_instructions(r_);
    count_uses(live);
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      if (live[at]) {
        place(at);
      } else if (!r_.instrs[at].op->is_view()) {
        ++s_.removed;
      }
    }
    return std::move(s_);
  }

 private:
  // The first group that `i` may stand in.
  uint32_t earliest(const Instr& i, bool pointwise) const {
    uint32_t first = 0;
    auto after = [&](const std::vector<Access>& list, const Value& v) {
      for (const Access& a : list) {
        const bool same =
            pointwise && s_.groups[a.group].fused && r_.value(a.value).same_elements(v);
        first = std::max(first, a.group + (same ? 0 : 1));
      }
    };
    for (int k = 0; k < i.n_in; ++k) {
      if (r_.in(i)[k] == kNone) continue;
      const Value& v = r_.value(r_.in(i)[k]);
      after(writes_[v.storage], v);
    }
    for (int k = 0; k < i.n_out; ++k) {
      const Value& v = r_.value(r_.out(i)[k]);
      after(writes_[v.storage], v);
      after(reads_[v.storage], v);
    }
    return first;
  }

  bool shares_data(const Instr& i, uint32_t group) const {
    for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
      if (r_.operands[k] == kNone) continue;
      const uint32_t s = r_.value(r_.operands[k]).storage;
      for (const auto* list : {&reads_[s], &writes_[s]}) {
        for (const Access& a : *list) {
          if (a.group == group) return true;
        }
      }
    }
    return false;
  }

  // Survivors and externals are used after the last instruction.
  void count_uses(const std::vector<bool>& live) {
    for (uint32_t s : r_.survivors) ++uses_left_[s];
    for (uint32_t s : r_.externals) ++uses_left_[s];
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      const Instr& i = r_.instrs[at];
      for (uint32_t k = i.first_in; live[at] && k < i.first_out + i.n_out; ++k) {
        if (r_.operands[k] != kNone) ++uses_left_[r_.value(r_.operands[k]).storage];
      }
    }
  }

  // How many different values on storage `s` the group uses; -1: others use the storage, too.
  int values_of(uint32_t s, uint32_t group) const {
    std::vector<uint32_t> values;
    for (const auto* list : {&reads_[s], &writes_[s]}) {
      for (const Access& a : *list) {
        if (a.group != group) return -1;
        values.push_back(a.value);
      }
    }
    std::sort(values.begin(), values.end());
    return static_cast<int>(std::unique(values.begin(), values.end()) - values.begin());
  }

  bool has(const std::vector<Access>& list, uint32_t value, uint32_t group) const {
    return std::any_of(list.begin(), list.end(),
                       [&](const Access& a) { return a.value == value && a.group == group; });
  }

  // Operand `value` of an instruction that has just joined the group. What nobody will use again
  // and only this group has used stays in its registers.
  void add_operand(uint32_t value, uint32_t group, std::vector<std::vector<Access>>& accesses) {
    const uint32_t s = r_.value(value).storage;
    if (!has(reads_[s], value, group) && !has(writes_[s], value, group)) ++size_[group].in_memory;
    accesses[s].push_back({value, group});
    if (--uses_left_[s] > 0) return;
    if (const int n = values_of(s, group); n > 0) size_[group].in_memory -= static_cast<size_t>(n);
  }

  bool fits(const Instr& i, uint32_t group, bool is_flat) const {
    const Group& g = s_.groups[group];
    if (!g.fused) return false;
    KernelSize size = size_[group];
    ++size.instrs;
    size.in_memory += static_cast<size_t>(i.n_in) + i.n_out;
    size.numbers += static_cast<size_t>(i.n_in);
    size.polynomials += polynomials(r_, i);
    const IntList space = r_.value(r_.out(i)[0]).size_list();
    if (!size.allowed(std::max(space.size(), g.space.size()), target_)) return false;
    if (space == g.space) return true;
    if (numel_of(space) != numel_of(g.space)) return false;
    return is_flat || flat_[group];
  }

  // Bytes that live longer, less those that die earlier, when `i` joins a group that others follow.
  int64_t growth(const Instr& i, uint32_t group) const {
    if (group + 1 == s_.groups.size()) return 0;
    int64_t bytes = 0;
    for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
      if (r_.operands[k] == kNone) continue;
      const uint32_t s = r_.value(r_.operands[k]).storage;
      const auto held = static_cast<int64_t>(r_.storages[s].bytes);
      const bool fresh = reads_[s].empty() && writes_[s].empty();
      if (k >= i.first_out && fresh && uses_left_[s] > 1 && !r_.survives(s)) bytes += held;
      const auto follows = [&](const Access& a) { return a.group > group; };
      if (k < i.first_out && uses_left_[s] == 1 &&
          std::none_of(reads_[s].begin(), reads_[s].end(), follows) &&
          std::none_of(writes_[s].begin(), writes_[s].end(), follows)) {
        bytes -= held;
      }
    }
    return bytes;
  }

  void place(uint32_t at) {
    const Instr& i = r_.instrs[at];
    const bool must = i.attrs.dynamic && !target_.calls_read_control;
    const bool pointwise = (fuse_ || must) && fusible(r_, i);
    const bool is_flat = pointwise && flat(r_, i);
    uint32_t group = kNone;
    if (pointwise) {
      uint32_t first = earliest(i, true);
      // A write that moved before something that can fail would cost a copy of the external on
      // every replay, to undo it (HostPlan::fallible_after_write).
      if (writes_external(r_, i)) first = std::max(first, after_fallible_);
      for (uint32_t g = first; fuse_ && g < s_.groups.size() && group == kNone; ++g) {
        if (fits(i, g, is_flat) && shares_data(i, g) && growth(i, g) <= kLittleMemory) group = g;
      }
    }
    if (group == kNone) {
      group = static_cast<uint32_t>(s_.groups.size());
      s_.groups.push_back({pointwise, {}, r_.value(r_.out(i)[0]).size_list()});
      flat_.push_back(is_flat);
      size_.emplace_back();
      if (!pointwise && can_fail(r_, i)) after_fallible_ = group + 1;
    } else if (!is_flat && flat_[group]) {
      s_.groups[group].space = r_.value(r_.out(i)[0]).size_list();
      flat_[group] = false;
    }
    s_.groups[group].instrs.push_back(at);
    ++size_[group].instrs;
    if (pointwise) size_[group].polynomials += polynomials(r_, i);
    for (int k = 0; k < i.n_in; ++k) {
      const uint32_t value = r_.in(i)[k];
      value == kNone ? void(++size_[group].numbers) : add_operand(value, group, reads_);
    }
    for (int k = 0; k < i.n_out; ++k) add_operand(r_.out(i)[k], group, writes_);
  }

  const Recording& r_;
  bool fuse_;
  const Target& target_;
  Schedule s_;
  std::vector<std::vector<Access>> reads_, writes_;  // By storage.
  std::vector<bool> flat_;                           // By group: all instructions are flat.
  std::vector<uint32_t> uses_left_;                  // By storage: operands yet to be placed.
  std::vector<KernelSize> size_;                     // By group.
  uint32_t after_fallible_ = 0;                      // No group from here on can fail.
};

}  // namespace

bool KernelSize::allowed(int ndim, const Target& target) const {
  // What registers and a compiler's patience are good for. Sixteen polynomials are unrolled four
  // times; more would save a pass over memory that takes less time than unrolling them less costs.
  constexpr size_t most_instrs = 256, most_in_memory = 32, most_polynomials = 16;
  return instrs <= most_instrs && in_memory <= most_in_memory && polynomials <= most_polynomials &&
         target.takes(in_memory, numbers, ndim);
}

bool flat(const Recording& r, const Instr& i) {
  const int64_t n = r.value(r.out(i)[0]).numel;
  for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
    if (r.operands[k] == kNone) continue;
    const Value& v = r.value(r.operands[k]);
    if (v.numel != 1 && (v.strided || v.numel != n)) return false;
  }
  return true;
}

bool writes_external(const Recording& r, const Instr& i) {
  for (int k = 0; k < i.n_out; ++k) {
    if (r.storages[r.value(r.out(i)[k]).storage].origin == Origin::External) return true;
  }
  return false;
}

bool takes_memory(const Recording& r, const Instr& i) {
  if (i.op->kind != OpKind::Pointwise) return true;
  for (int k = 0; i.into && k < i.n_out; ++k) {
    const Value& out = r.value(r.out(i)[k]);
    for (int n = 0; n < i.n_in; ++n) {
      if (r.in(i)[n] == kNone) continue;
      const Value& in = r.value(r.in(i)[n]);
      const bool same = in.offset == out.offset && in.size_list() == out.size_list() &&
                        in.stride_list() == out.stride_list();
      // The eager driver copies what it would overwrite too early.
      if (in.storage == out.storage && !same) return true;
    }
  }
  return false;
}

bool can_fail(const Recording& r, const Instr& i) {
  const bool on_cpu = r.storages[r.value(r.out(i)[0]).storage].device == kCPU;
  return on_cpu ? i.op->check_values != nullptr : takes_memory(r, i);
}

// A storage that only one fused group touches lives in its registers.
static void mark_stored(const Recording& r, Schedule& s) {
  s.stored.assign(r.storages.size(), 0);
  std::vector<uint32_t> only(r.storages.size(), kNone);
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    for (uint32_t at : s.groups[g].instrs) {
      const Instr& i = r.instrs[at];
      for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
        if (r.operands[k] == kNone) continue;
        const uint32_t st = r.value(r.operands[k]).storage;
        if (!s.groups[g].fused || (only[st] != kNone && only[st] != g)) s.stored[st] = 1;
        only[st] = g;
      }
    }
  }
  for (uint32_t st : r.survivors) s.stored[st] = 1;
  for (uint32_t st : r.externals) s.stored[st] = 1;
}

Schedule make_schedule(const Recording& r, bool fuse, const Target& target) {
  Schedule s = Fuser(r, fuse, target).run();
  if (fuse) merge_groups(r, s, target);
  mark_stored(r, s);
  return s;
}

void verify_schedule(const Recording& r, const Schedule& s) {
  std::vector<uint32_t> position(r.instrs.size(), kNone);
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    for (uint32_t i : s.groups[g].instrs) position[i] = g;
  }
  for (uint32_t b = 0; b < r.instrs.size(); ++b) {
    if (position[b] == kNone) continue;
    for (uint32_t a = 0; a < b; ++a) {
      if (position[a] == kNone) continue;
      const Instr &x = r.instrs[a], &y = r.instrs[b];
      auto clash = [&](uint32_t v, uint32_t w) {
        if (v == kNone || w == kNone || r.value(v).storage != r.value(w).storage) return;
        const bool same = position[a] == position[b] && r.value(v).same_elements(r.value(w));
        BRRR_CHECK(same || position[a] < position[b],
                   "graph: schedule runs {} before {}, which it depends on", r.describe(y),
                   r.describe(x));
      };
      for (int n = 0; n < x.n_out; ++n) {
        for (int k = 0; k < y.n_in; ++k) clash(r.out(x)[n], r.in(y)[k]);
        for (int k = 0; k < y.n_out; ++k) clash(r.out(x)[n], r.out(y)[k]);
      }
      for (int n = 0; n < x.n_in; ++n) {
        for (int k = 0; k < y.n_out; ++k) clash(r.in(x)[n], r.out(y)[k]);
      }
    }
  }
}

}  // namespace brrr::graph
