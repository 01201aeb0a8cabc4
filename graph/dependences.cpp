// The accesses of each storage: the one dependence list of fuser, merger, planner and verifiers. An
// instruction is dead if no survivor and no external depends on it and it has no other effect.
#include <algorithm>

#include "core/check.h"
#include "graph/schedule.h"

namespace brrr::graph {

void Recording::find_accesses() {
  lasting.assign(storages.size(), false);
  for (uint32_t st : survivors) lasting[st] = true;
  for (uint32_t st : externals) lasting[st] = true;
  live.assign(instrs.size(), false);
  std::vector<bool> needed = lasting;
  for (size_t at = instrs.size(); at-- > 0;) {
    const Instr& i = instrs[at];
    if (i.op->is_view()) continue;  // Every operand includes its window.
    // Exchanges between processes and errors are effects, in eager mode too.
    live[at] = i.op->communicates || i.op->check_values != nullptr;
    for (uint32_t id : out(i)) live[at] = live[at] || needed[value(id).storage];
    if (!live[at]) continue;
    // A destination keeps the elements that the call does not write: earlier writers stay live.
    each_operand(i, [&](uint32_t id, bool write) {
      if (!write || i.into) needed[value(id).storage] = true;
    });
  }
  accesses.assign(storages.size(), {});
  written.assign(storages.size(), false);
  for (uint32_t at = 0; at < instrs.size(); ++at) {
    if (!live[at]) continue;
    each_operand(instrs[at], [&](uint32_t id, bool write) {
      accesses[value(id).storage].push_back({at, id, write});
      if (write) written[value(id).storage] = true;
    });
  }
}

void Schedule::number_groups(size_t instrs) {
  group_of.assign(instrs, kNone);
  for (uint32_t g = 0; g < groups.size(); ++g) {
    for (uint32_t at : groups[g].instrs) group_of[at] = g;
  }
}

void Schedule::reorder(const std::vector<uint32_t>& order) {
  std::vector<Group> now;
  for (uint32_t g : order) now.push_back(std::move(groups[g]));
  groups = std::move(now);
  number_groups(group_of.size());
}

std::pair<uint32_t, uint32_t> Schedule::life(const Recording& r, uint32_t storage) const {
  std::pair<uint32_t, uint32_t> groups{kNone, 0};
  for (const Access& a : r.accesses[storage]) {
    groups.first = std::min(groups.first, group_of[a.instr]);
    groups.second = std::max(groups.second, group_of[a.instr]);
  }
  return groups;
}

void verify_schedule(const Recording& r, const Schedule& s) {
  Schedule again;
  again.groups = s.groups;
  again.number_groups(r.instrs.size());
  BRRR_CHECK(again.group_of == s.group_of,
             "graph: the schedule's group_of does not match its groups");
  for (const auto& list : r.accesses) {
    for (const Access& b : list) {
      for (const Access& a : std::span(list.data(), &b)) {
        if (a.instr == b.instr || !r.conflict(a, b)) continue;
        const uint32_t before = s.group_of[a.instr], after = s.group_of[b.instr];
        const Group& g = s.groups[before];
        const Part* const part = before == after && g.fused ? &g.part_of(a.instr) : nullptr;
        const bool passed = part && part->has(b.instr) && passes(r, a, b, part->domain);
        BRRR_CHECK(passed || before < after,
                   "graph: schedule runs {} before {}, which it depends on",
                   r.describe(r.instrs[b.instr]), r.describe(r.instrs[a.instr]));
      }
    }
  }
}

}  // namespace brrr::graph
