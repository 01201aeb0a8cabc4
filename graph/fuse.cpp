// Fusion: pointwise ops, and around them reductions and row ops of the same rows. Groups stand in
// the order in which they will run. An instruction may join a group if everything it depends on
// stands in an earlier group, or in the same one with exactly the same elements (then the value is
// passed on in a register). Joining so keeps every dependence by construction; no cycle can arise.
#include <algorithm>
#include <map>
#include <string>

#include "graph/cost.h"

namespace brrr::graph {

std::vector<uint32_t>& distinct(std::vector<uint32_t>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

namespace {

// Whether the instruction can be text at all.
bool fusible(const Recording& r, const Instr& i) {
  const Value& o = r.value(r.out(i)[0]);
  if (o.numel == 0) return false;
  if (!i.op->pointwise) return !i.into && (i.op->row || i.op->reduction);
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

class Fuser {
 public:
  Fuser(const Recording& r, bool fuse, const Target& target) : r_(r), fuse_(fuse), target_(target) {
    s_.group_of.assign(r.instrs.size(), kNone);
    find_alike();
  }

  Schedule run() {
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      if (r_.live[at]) {
        add(at);
      } else if (!r_.instrs[at].op->is_view()) {
        ++s_.removed;
      }
    }
    return std::move(s_);
  }

 private:
  // Instructions that do the same to several tensors with the same number: of these a table makes
  // one kernel, unless each has become part of another.
  void find_alike() {
    constexpr int several = 4;
    s_.alike.resize(r_.instrs.size());
    std::map<std::string, std::vector<uint32_t>> all;
    for (uint32_t at = 0; at < r_.instrs.size(); ++at) {
      const Instr& i = r_.instrs[at];
      if (!r_.live[at] || !i.op->pointwise) continue;
      std::string like = likeness(r_, {{at}, {.space = r_.value(r_.out(i)[0]).size_list()}});
      bool number = false;
      for (int k = 0; k < i.n_in; ++k) {
        const uint32_t id = r_.in(i)[k];
        if (id == kNone || r_.value(id).numel > 1) continue;
        const uint32_t st = r_.value(id).storage;
        const bool own = std::any_of(r_.out(i), r_.out(i) + i.n_out,
                                     [&](uint32_t out) { return r_.value(out).storage == st; });
        if (own) continue;
        like += '|' + std::to_string(st);
        number = true;
      }
      if (number) all[like].push_back(at);
    }
    for (const auto& [like, list] : all) {
      for (uint32_t at : list) s_.alike[at] = like[0] != '|' && list.size() >= several;
    }
  }

  const std::vector<Access>& accesses(uint32_t value) const {
    return r_.accesses[r_.value(value).storage];
  }

  // The first group that the instruction may stand in.
  uint32_t earliest(uint32_t at, bool fusible) const {
    uint32_t first = 0;
    r_.each_operand(r_.instrs[at], [&](uint32_t value, bool write) {
      for (const Access& a : accesses(value)) {
        if (a.instr >= at) break;
        if (!write && !a.write) continue;
        const uint32_t group = s_.group_of[a.instr];
        if (group < first) continue;
        const Group& g = s_.groups[group];
        Domain domain = g.domain;
        const bool same = fusible && g.fused && join(r_, target_, g.instrs, domain, at) &&
                          passes(r_, a, {at, value, write}, domain);
        first = std::max(first, group + (same ? 0 : 1));
      }
    });
    return first;
  }

  // The groups whose pass over memory would serve the instruction, too. To read the same number is
  // no such thing, where a table makes one kernel of those that do.
  std::vector<uint32_t> sharing(uint32_t at) const {
    std::vector<uint32_t> groups;
    r_.each_operand(r_.instrs[at], [&](uint32_t value, bool write) {
      const bool number = r_.value(value).numel == 1;
      for (const Access& a : accesses(value)) {
        if (a.instr >= at) break;
        if (number && (!(write || a.write) || s_.alike[at])) continue;
        groups.push_back(s_.group_of[a.instr]);
      }
    });
    return distinct(groups);
  }

  bool fits(const Instr& i, uint32_t group, const Domain& domain) const {
    KernelSize size = kernel_size(r_, s_, group, group);
    ++size.instrs;
    size.in_memory += static_cast<size_t>(i.n_in) + i.n_out;
    size.numbers += static_cast<size_t>(i.n_in);
    size.polynomials += polynomials(r_, i);
    return size.allowed(domain.space.size(), target_);
  }

  // Bytes that live longer, less those that die earlier, when the instruction joins a group that
  // others follow.
  int64_t growth(uint32_t at, uint32_t group) const {
    if (group + 1 == s_.groups.size()) return 0;
    int64_t bytes = 0;
    r_.each_operand(r_.instrs[at], [&](uint32_t value, bool write) {
      const uint32_t st = r_.value(value).storage;
      if (r_.lasting[st]) return;
      size_t left = 0;  // Uses from this instruction on.
      bool used = false, follows = false;
      for (const Access& a : r_.accesses[st]) {
        left += a.instr >= at;
        used |= a.instr < at;
        follows |= a.instr < at && s_.group_of[a.instr] > group;
      }
      const auto held = static_cast<int64_t>(r_.storages[st].bytes);
      if (write && !used && left > 1) bytes += held;
      if (!write && left == 1 && !follows) bytes -= held;
    });
    return bytes;
  }

  // What makes values anew shares no kernel with what came before: it would be as if they were
  // kept.
  uint32_t anew_from(uint32_t at) {
    const bool before = std::exchange(anew_, !r_.again.empty() && r_.again[at]);
    if (anew_ && !before) anew_from_ = static_cast<uint32_t>(s_.groups.size());
    return anew_ ? anew_from_ : 0;
  }

  void add(uint32_t at) {
    const Instr& i = r_.instrs[at];
    const bool must = i.attrs.dynamic && !target_.calls_read_control;
    Domain own{.space = r_.value(r_.out(i)[0]).size_list()};
    const bool fused = (fuse_ || must) && fusible(r_, i) && join(r_, target_, {}, own, at);
    const uint32_t from = anew_from(at);
    uint32_t group = kNone;
    if (fused) {
      uint32_t first = std::max(earliest(at, true), from);
      // A write that moved before something that can fail would cost a copy of the external on
      // every replay, to undo it (HostPlan::find_failures).
      if (writes_external(r_, i)) first = std::max(first, after_fallible_);
      for (uint32_t g : sharing(at)) {
        if (!fuse_ || g < first || group != kNone || !s_.groups[g].fused) continue;
        Domain domain = s_.groups[g].domain;
        if (join(r_, target_, s_.groups[g].instrs, domain, at) && fits(i, g, domain) &&
            growth(at, g) <= kLittleMemory) {
          s_.groups[g].domain = domain;
          group = g;
        }
      }
    }
    if (group == kNone) {
      group = static_cast<uint32_t>(s_.groups.size());
      s_.groups.push_back({fused, {}, own, {}});
    }
    if (can_fail(r_, i)) after_fallible_ = std::max(after_fallible_, group + 1);
    s_.groups[group].instrs.push_back(at);
    s_.group_of[at] = group;
  }

  const Recording& r_;
  bool fuse_;
  const Target& target_;
  Schedule s_;
  uint32_t after_fallible_ = 0;  // No group from here on can fail.
  uint32_t anew_from_ = 0;       // The first group since values began to be made anew.
  bool anew_ = false;            // The last instruction was one of those.
};

}  // namespace

bool writes_external(const Recording& r, const Instr& i) {
  return std::any_of(r.out(i), r.out(i) + i.n_out, [&](uint32_t value) {
    return r.storages[r.value(value).storage].origin == Origin::External;
  });
}

bool allocates(const Recording& r, const Instr& i) {
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

std::vector<uint32_t> checked_values(const Recording& r, const Instr& i) {
  std::vector<uint32_t> all, ids;
  for (int n = 0; n < i.n_in; ++n) {
    const uint32_t id = r.in(i)[n];
    if (id == kNone) continue;
    all.push_back(id);
    if (!is_floating(r.value(id).dtype)) ids.push_back(id);
  }
  return ids.empty() ? all : ids;
}

bool can_fail(const Recording& r, const Instr& i) {
  const bool on_cpu = r.storages[r.value(r.out(i)[0]).storage].device == kCPU;
  return on_cpu ? i.op->check_values != nullptr : allocates(r, i);
}

// A storage that only one fused group touches lives in its registers.
static void mark_stored(const Recording& r, Schedule& s) {
  s.stored.assign(r.storages.size(), 0);
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    const auto [first, last] = s.life(r, st);
    s.stored[st] = r.lasting[st] || (first != kNone && (first != last || !s.groups[first].fused));
  }
}

Schedule make_schedule(const Recording& r, bool fuse, const Target& target) {
  Schedule s = Fuser(r, fuse, target).run();
  if (fuse) merge_groups(r, s, target);
  make_parts(r, s, target);
  mark_stored(r, s);
  if (fuse && target.part_bytes) find_strips(r, s, target.part_bytes);
  return s;
}

}  // namespace brrr::graph
