// Memory of temporaries: offline best fit by live range, in the arena and in unwritten survivors.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/check.h"
#include "graph/schedule.h"

namespace brrr::graph {

namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A block of memory: storages that reuse it in place one after the other, or a kernel's scratch.
struct Block : MemoryPlan::Piece {
  std::vector<uint32_t> storages;    // Each is written in place over the one before.
  MemoryPlan::Piece* own = nullptr;  // Of a kernel's memory: the result.
};

bool planned(const Recording& r, const Schedule& s, const MemoryPlan& m, uint32_t st) {
  const StorageInfo& info = r.storages[st];
  if (info.origin != Origin::Internal || !s.stored[st] || m.storages[st].first == kNone)
    return false;
  // On a GPU host data stay in the upload buffer.
  const bool uploaded = info.device != kCPU && is_host_data(r.instrs[info.maker]);
  return !uploaded && !r.survives(st);
}

// Whether every access of group g to `st` covers the whole storage, element i at iteration i of its
// part. (takes_over() checks that parts match, since they run in any order.)
bool elementwise(const Recording& r, const Schedule& s, uint32_t g, uint32_t st) {
  const Group& group = s.groups[g];
  if (!group.fused && !r.instrs[group.instrs[0]].op->pointwise) return false;
  return std::ranges::all_of(r.accesses[st], [&](const Access& a) {
    if (s.group_of[a.instr] != g) return true;
    const Value& v = r.value(a.value);
    return v.numel == r.storages[st].elements(v.item()) &&
           role(r, a, group.fused ? group.part_of(a.instr).domain : group.domain) == Role::Each;
  });
}

// Whether group g, the last one to use `before`, may write `after` into its memory: both are
// accessed element by element. An unfused group must not write `before`; a fused one does so in
// registers only, since no later group reads it.
bool takes_over(const Recording& r, const Schedule& s, uint32_t g, uint32_t before,
                uint32_t after) {
  // Within a strip only storages with memory for one part have the live ranges of their groups.
  const Strip* const strip = s.strips.of(g);
  const auto goes = [&](uint32_t st) { return !strip || s.strips.parts(st) == strip->parts; };
  const StorageInfo &a = r.storages[before], &b = r.storages[after];
  if (a.bytes != b.bytes || a.row != b.row || a.pitch != b.pitch || !goes(before) || !goes(after) ||
      !elementwise(r, s, g, before) || !elementwise(r, s, g, after)) {
    return false;
  }
  auto any = [&](uint32_t st, const auto& f) { return std::ranges::any_of(r.accesses[st], f); };
  const auto writes = [&](const Access& a) { return a.write && s.group_of[a.instr] == g; };
  if (!s.groups[g].fused && any(before, writes)) return false;
  return std::ranges::all_of(s.groups[g].parts, [&](const Part& part) {
    auto inside = [&](const Access& a) { return part.has(a.instr); };
    return any(before, inside) == any(after, inside);
  });
}

// Chains temporaries of one size into blocks where a group takes over one's memory for the next.
std::vector<Block> make_blocks(const Recording& r, const Schedule& s, MemoryPlan& m) {
  std::vector<Block> blocks;
  std::vector<uint32_t> order;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (planned(r, s, m, st)) order.push_back(st);
  }
  std::ranges::stable_sort(order, {}, [&](uint32_t st) { return m.storages[st].first; });
  std::map<uint32_t, std::set<size_t>> ending;  // Blocks by the last group that uses them.
  for (uint32_t st : order) {
    const MemoryPlan::Piece& x = m.storages[st];
    const uint32_t at = x.first;
    size_t in = blocks.size();
    bool candidate = false;
    if (elementwise(r, s, at, st)) {
      for (size_t k : ending[at]) {
        const uint32_t before = blocks[k].storages.back();
        if (m.storages[before].first == at) continue;
        candidate = true;
        if (!takes_over(r, s, at, before, st)) continue;
        in = k;
        break;
      }
    }
    m.in_place_candidates += candidate;
    m.in_place += ending[at].erase(in);
    if (in == blocks.size()) blocks.push_back({{-1, aligned(x.bytes), kNone, at, x.last}, {}});
    blocks[in].storages.push_back(st);
    blocks[in].last = x.last;
    ending[x.last].insert(in);
  }
  return blocks;
}

// Blocks that have an offset, ascending by it.
using Placed = std::vector<const Block*>;

void place(Placed& placed, const Block& b) {
  placed.insert(std::ranges::upper_bound(placed, b.offset, {}, &Block::offset), &b);
}

// The start of the tightest gap for `b` among the blocks of `placed` that are live with it, or the
// end of the last one.
int64_t tightest_gap(const Block& b, const Placed& placed) {
  int64_t at = 0, best = -1, best_gap = INT64_MAX;
  for (const Block* o : placed) {
    if (o->first > b.last || b.first > o->last) continue;
    if (o->offset - at >= b.bytes && o->offset - at < best_gap) {
      best = at;
      best_gap = o->offset - at;
    }
    at = std::max(at, o->offset + o->bytes);
  }
  return best >= 0 ? best : at;
}

// Gives blocks offsets in the given order; returns the arena's size. With `in_time`, blocks come by
// start of live range, and those whose range has ended are dropped from the search.
int64_t assign_offsets(std::vector<Block>& blocks, const std::vector<size_t>& order, bool in_time) {
  Placed placed;
  int64_t top = 0;
  for (size_t n : order) {
    Block& b = blocks[n];
    if (b.host != kNone) continue;
    if (in_time) std::erase_if(placed, [&](const Block* o) { return o->last < b.first; });
    b.offset = tightest_gap(b, placed);
    top = std::max(top, b.offset + b.bytes);
    place(placed, b);
  }
  return top;
}

// The offset of a survivor that takes over the block's memory in the block's last group; -1: none.
int64_t takeover_offset(const Recording& r, const Schedule& s, const Block& b,
                        const std::vector<Block>& owners, const Placed& placed) {
  if (b.storages.empty()) return -1;
  for (const Block& o : owners) {
    if (o.first != b.last || !takes_over(r, s, b.last, b.storages.back(), o.storages[0])) continue;
    const bool taken = std::ranges::any_of(placed, [&](const Block* p) {
      return p != &o && p->first <= b.last && b.first <= p->last &&
             p->offset < o.offset + o.bytes && o.offset < p->offset + p->bytes;
    });
    if (!taken) return o.offset;
  }
  return -1;
}

// Places blocks, in the given order, in rooms whose owners are written after the block's last use.
void place_in_rooms(const Recording& r, const Schedule& s, const MemoryPlan& m,
                    std::vector<Block>& blocks, const std::vector<size_t>& order,
                    const MemoryRules& rules) {
  for (uint32_t h = 0; h < rules.rooms.size(); ++h) {
    const Room& room = rules.rooms[h];
    std::vector<Block> owners;
    for (const auto& [st, at] : room.owners) {
      owners.push_back({{static_cast<int64_t>(at), aligned(m.storages[st].bytes), kNone,
                         m.storages[st].first, kNone},
                        {st}});
    }
    Placed placed;
    for (const Block& o : owners) place(placed, o);
    for (size_t n : order) {
      Block& b = blocks[n];
      if (b.host != kNone || b.first < rules.from) continue;
      int64_t at = takeover_offset(r, s, b, owners, placed);
      if (at < 0) {
        at = tightest_gap(b, placed);
        // The exact size must fit into the room, not the aligned one.
        const int64_t bytes = b.storages.empty() ? b.bytes : m.storages[b.storages[0]].bytes;
        if (at + bytes > static_cast<int64_t>(room.bytes)) continue;
      }
      b.host = h;
      b.offset = at;
      place(placed, b);
    }
  }
}

// The group at which most bytes of the counted blocks are live.
struct Peak {
  uint32_t group;
  size_t bytes;
};
template <class F>
Peak find_peak(const Schedule& s, const std::vector<Block>& blocks, const F& counts) {
  std::vector<int64_t> live(s.groups.size() + 1);  // By group.
  for (const Block& b : blocks) {
    if (!counts(b)) continue;
    live[b.first] += b.bytes;
    live[b.last + 1] -= b.bytes;
  }
  std::partial_sum(live.begin(), live.end(), live.begin());
  const auto most = std::ranges::max_element(live);
  return {static_cast<uint32_t>(most - live.begin()), static_cast<size_t>(*most)};
}

// Gives all blocks offsets by the best of several placement orders, none of which is best for all
// steps; returns the size of the arena and sets the lower bound.
size_t choose_offsets(const Recording& r, const Schedule& s, MemoryPlan& m,
                      std::vector<Block>& blocks, const MemoryRules& rules) {
  const uint32_t peak = m.peak = find_peak(s, blocks, [](const Block&) { return true; }).group;
  auto order = [&](const auto& key) {
    std::vector<size_t> list(blocks.size());
    std::iota(list.begin(), list.end(), size_t{0});
    std::ranges::stable_sort(list, {}, [&](size_t n) { return key(blocks[n]); });
    return list;
  };
  const auto by_time = order([](const Block& b) { return int64_t{b.first}; });
  const auto by_size = order([](const Block& b) { return -b.bytes; });
  const auto by_area = order([](const Block& b) { return -b.bytes * (b.last - b.first + 1); });
  const auto at_peak =
      order([&](const Block& b) { return std::pair(b.first > peak || b.last < peak, -b.bytes); });
  // Few rooms are written late: keep those for blocks that are used late.
  const auto latest = order([](const Block& b) { return std::pair(-int64_t{b.last}, -b.bytes); });
  // With many blocks, use only the order that does not take quadratic time.
  const bool many = blocks.size() > 2000;
  std::vector<Block> best;
  int64_t least = INT64_MAX;
  for (const auto* hosting : {&by_size, &at_peak, &by_area, &latest}) {
    std::vector<Block> hosted = blocks;
    place_in_rooms(r, s, m, hosted, *hosting, rules);
    for (const auto* placing : {&by_size, &by_time, &by_area}) {
      if (many && placing != &by_time) continue;
      const int64_t top = assign_offsets(hosted, *placing, placing == &by_time);
      if (top >= least) continue;
      least = top;
      best = hosted;
    }
    if (rules.rooms.empty() || many) break;
  }
  blocks = std::move(best);
  m.lower_bound_bytes = find_peak(s, blocks, [](const Block& b) { return b.host == kNone; }).bytes;
  return static_cast<size_t>(least);
}

}  // namespace

MemoryPlan plan_memory(const Recording& r, const Schedule& s, const MemoryRules& rules) {
  MemoryPlan m;
  m.rooms = rules.rooms;
  const auto until = [&](uint32_t g) { return rules.until.empty() ? g : rules.until[g]; };
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    auto [first, last] = s.stay(r, st);
    for (const Access& a : r.accesses[st]) last = std::max(last, until(s.group_of[a.instr]));
    const auto bytes = static_cast<int64_t>(r.storages[st].bytes) / s.strips.parts(st);
    m.storages.push_back({-1, bytes, kNone, first, last});
  }
  std::vector<Block> blocks = make_blocks(r, s, m);
  m.scratch.resize(s.groups.size());
  m.kept.resize(s.groups.size());
  const auto add = [&](std::vector<MemoryPlan::Piece>& pieces, const std::vector<int64_t>& bytes,
                       const auto& whole_strip) {
    for (uint32_t g = 0; g < bytes.size(); ++g) {
      if (!bytes[g]) continue;
      const Strip* const strip = whole_strip(g) ? s.strips.of(g) : nullptr;
      const uint32_t first = strip ? strip->first : g, last = strip ? strip->last : until(g);
      blocks.push_back({{-1, aligned(bytes[g]), kNone, first, last}, {}, &pieces[g]});
    }
  };
  // Scratch of a generated kernel accumulates over all parts of a strip, so it lives throughout.
  add(m.scratch, rules.scratch, [&](uint32_t g) { return s.groups[g].fused; });
  add(m.kept, s.strips.kept, [](uint32_t) { return true; });
  m.arena_bytes = choose_offsets(r, s, m, blocks, rules);
  for (const Block& b : blocks) {
    for (uint32_t st : b.storages) {
      m.storages[st].offset = b.offset;
      m.storages[st].host = b.host;
      m.hosted += b.host != kNone;
    }
    if (b.own) *b.own = b;
  }
  return m;
}

static std::string describe(const Block& b) {
  return b.storages.empty() ? fmt::format("scratch memory of a kernel, from group {} on", b.first)
                            : fmt::format("storage {}", b.storages[0]);
}

// Everything that has a place: temporaries, kernels' own memory, and survivors that take guests in,
// which stay once they are written.
static std::vector<Block> all_blocks(const Recording& r, const Schedule& s, const MemoryPlan& m) {
  std::vector<Block> all;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (planned(r, s, m, st)) all.push_back({m.storages[st], {st}});
  }
  for (const auto* pieces : {&m.scratch, &m.kept}) {
    for (const MemoryPlan::Piece& x : *pieces) {
      if (x.bytes) all.push_back({x, {}});
    }
  }
  for (uint32_t h = 0; h < m.rooms.size(); ++h) {
    for (const auto& [st, at] : m.rooms[h].owners) {
      const auto bytes = static_cast<int64_t>(r.storages[st].bytes);
      all.push_back({{static_cast<int64_t>(at), bytes, h, m.storages[st].first, kNone}, {st}});
    }
  }
  return all;
}

void verify_memory(const Recording& r, const Schedule& s, const MemoryPlan& m) {
  const std::vector<Block> all = all_blocks(r, s, m);
  auto follows = [&](const Block& a, const Block& b) {
    return a.offset == b.offset && a.last == b.first && !a.storages.empty() &&
           !b.storages.empty() && takes_over(r, s, b.first, a.storages[0], b.storages[0]);
  };
  for (size_t k = 0; k < all.size(); ++k) {
    const Block& b = all[k];
    const size_t room = b.host == kNone ? m.arena_bytes : m.rooms[b.host].bytes;
    BRRR_CHECK(b.offset >= 0 && b.offset + b.bytes <= static_cast<int64_t>(room),
               "graph: {} lies outside the memory planned for it", describe(b));
    for (size_t n = 0; n < k; ++n) {
      const Block& a = all[n];
      const bool apart =
          a.host != b.host || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
      const bool at_once = a.first <= b.last && b.first <= a.last;
      BRRR_CHECK(apart || !at_once || follows(a, b) || follows(b, a),
                 "graph: {} and {} are live at once and overlap", describe(a), describe(b));
    }
  }
}

}  // namespace brrr::graph
