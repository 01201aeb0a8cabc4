// Memory of temporaries: offline best fit by lifetime, in survivors not yet written and the arena.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "graph/schedule.h"

namespace brrr::graph {

void find_lives(const Recording& r, const Schedule& s, std::vector<uint32_t>& first,
                std::vector<uint32_t>& last) {
  first.assign(r.storages.size(), kNone);
  last.assign(r.storages.size(), 0);
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    for (uint32_t at : s.groups[g].instrs) {
      const Instr& i = r.instrs[at];
      for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
        if (r.operands[k] == kNone) continue;
        const uint32_t st = r.value(r.operands[k]).storage;
        first[st] = std::min(first[st], g);
        last[st] = g;
      }
    }
  }
}

namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(size_t bytes) {
  return (static_cast<int64_t>(bytes) + kAlign - 1) / kAlign * kAlign;
}

// Neighbours in time that share memory, or a kernel's scratch memory, which is no storage.
struct Block {
  std::vector<uint32_t> storages;  // More than one: each is written in place over the one before.
  int64_t bytes;
  uint32_t first, last;
  int64_t offset = -1;
  uint32_t host = kNone;
};

bool planned(const Recording& r, const Schedule& s, const MemoryPlan& m, uint32_t st) {
  const StorageInfo& info = r.storages[st];
  if (info.origin != Origin::Internal || !s.stored[st] || m.first[st] == kNone) return false;
  // On a GPU host data stay where they were uploaded to.
  const bool uploaded = info.device != kCPU && is_host_data(r.instrs[info.maker]);
  return !uploaded && !r.survives(st);
}

// In group g every access to `st` is dense over the whole storage, element i at iteration i, in one
// part of the group: whose other parts run before or after it.
bool elementwise(const Recording& r, const Group& g, uint32_t st) {
  if (r.instrs[g.instrs[0]].op->kind != OpKind::Pointwise) return false;
  for (uint32_t at : g.instrs) {
    const Instr& i = r.instrs[at];
    const int64_t n = r.value(r.out(i)[0]).numel;
    for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
      if (r.operands[k] == kNone) continue;
      const Value& v = r.value(r.operands[k]);
      if (v.storage != st) continue;
      const int64_t held = static_cast<int64_t>(r.storages[st].bytes / itemsize(v.dtype));
      if (v.strided || v.numel != n || v.numel != held) return false;
    }
  }
  return true;
}

bool uses(const Recording& r, const std::vector<uint32_t>& instrs, uint32_t st) {
  return std::any_of(instrs.begin(), instrs.end(), [&](uint32_t at) {
    const Instr& i = r.instrs[at];
    return std::any_of(r.in(i), r.out(i) + i.n_out,
                       [&](uint32_t v) { return v != kNone && r.value(v).storage == st; });
  });
}

// Group g reads `before` element by element, leaves its memory alone, and may write `after` there,
// which begins with it. A storage that others have read is stored by whoever writes it, even for
// the last time.
bool takes_over(const Recording& r, const Group& g, uint32_t before, uint32_t after) {
  if (r.storages[before].bytes != r.storages[after].bytes || !elementwise(r, g, before) ||
      !elementwise(r, g, after)) {
    return false;
  }
  for (uint32_t at : g.instrs) {
    const Instr& i = r.instrs[at];
    for (int k = 0; k < i.n_out; ++k) {
      if (r.value(r.out(i)[k]).storage == before) return false;
    }
  }
  const auto parts = independent_parts(r, g);
  return std::all_of(parts.begin(), parts.end(),
                     [&](const auto& p) { return uses(r, p, before) == uses(r, p, after); });
}

// Chains of temporaries of one size where a pointwise group reads the last of one and writes the
// first of the next.
std::vector<Block> make_blocks(const Recording& r, const Schedule& s, MemoryPlan& m) {
  std::vector<Block> blocks;
  std::vector<uint32_t> order;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (planned(r, s, m, st)) order.push_back(st);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return m.first[a] < m.first[b]; });
  for (uint32_t st : order) {
    const uint32_t at = m.first[st];
    const bool pointwise = elementwise(r, s.groups[at], st);
    bool joined = false, candidate = false;
    for (Block& b : blocks) {
      const uint32_t before = b.storages.back();
      if (!pointwise || b.last != at || m.first[before] == at) continue;
      candidate = true;
      if (!takes_over(r, s.groups[at], before, st)) continue;
      b.storages.push_back(st);
      b.last = m.last[st];
      joined = true;
      break;
    }
    m.in_place_candidates += candidate;
    m.in_place += joined;
    if (!joined) blocks.push_back({{st}, aligned(r.storages[st].bytes), at, m.last[st]});
  }
  return blocks;
}

// The start of the tightest gap for `b` between those of `placed` that are alive with it, or the
// end of them.
int64_t tightest_gap(const Block& b, const std::vector<const Block*>& placed) {
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const Block* o : placed) {
    if (o->first <= b.last && b.first <= o->last)
      taken.emplace_back(o->offset, o->offset + o->bytes);
  }
  std::sort(taken.begin(), taken.end());
  int64_t at = 0, best = -1, best_gap = INT64_MAX;
  for (const auto& [from, to] : taken) {
    if (from - at >= b.bytes && from - at < best_gap) {
      best = at;
      best_gap = from - at;
    }
    at = std::max(at, to);
  }
  return best >= 0 ? best : at;
}

// Places blocks in the given order; the size of the arena.
int64_t place(std::vector<Block>& blocks, const std::vector<size_t>& order) {
  std::vector<const Block*> placed;
  int64_t top = 0;
  for (size_t n : order) {
    Block& b = blocks[n];
    if (b.host != kNone) continue;
    b.offset = tightest_gap(b, placed);
    top = std::max(top, b.offset + b.bytes);
    placed.push_back(&b);
  }
  return top;
}

// Small temporaries are not worth an address that changes with every replay.
constexpr int64_t kLeastGuest = 4096;

// Whether the block's memory may become the survivor's: it dies before that is first written, or
// where it is written over element by element.
bool may_live_in(const Recording& r, const Schedule& s, const MemoryPlan& m, const Block& b,
                 uint32_t host) {
  if (b.last < m.first[host]) return true;
  return b.last == m.first[host] && !b.storages.empty() &&
         takes_over(r, s.groups[b.last], b.storages.back(), host);
}

// Puts blocks, the largest first, into survivors that are written after the block's last use.
void host_blocks(const Recording& r, const Schedule& s, const MemoryPlan& m,
                 std::vector<Block>& blocks, const std::vector<size_t>& by_size,
                 const MemoryRules& rules) {
  std::vector<std::vector<const Block*>> guests(rules.hosts.size());
  for (size_t n : by_size) {
    Block& b = blocks[n];
    if (b.first < rules.from || b.bytes < kLeastGuest) continue;
    for (size_t h = 0; h < rules.hosts.size() && b.host == kNone; ++h) {
      const uint32_t host = rules.hosts[h];
      const auto room = static_cast<int64_t>(r.storages[host].bytes);
      if (b.bytes > aligned(r.storages[host].bytes)) continue;
      if (!may_live_in(r, s, m, b, host)) continue;
      const int64_t at = tightest_gap(b, guests[h]);
      // One that is written over begins where the survivor does.
      if (b.last == m.first[host] ? at != 0 : at + b.bytes > room) continue;
      b.host = host;
      b.offset = at;
      guests[h].push_back(&b);
    }
  }
}

}  // namespace

MemoryPlan plan_memory(const Recording& r, const Schedule& s, const MemoryRules& rules) {
  MemoryPlan m;
  find_lives(r, s, m.first, m.last);
  std::vector<Block> blocks = make_blocks(r, s, m);
  const size_t scratch_from = blocks.size();
  for (uint32_t g = 0; g < rules.scratch.size(); ++g) {
    if (rules.scratch[g]) {
      blocks.push_back({{}, aligned(static_cast<size_t>(rules.scratch[g])), g, g});
    }
  }
  std::vector<size_t> by_size(blocks.size()), by_time(blocks.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  by_time = by_size;
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](size_t a, size_t b) { return blocks[a].first < blocks[b].first; });
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  host_blocks(r, s, m, blocks, by_size, rules);
  const int64_t timely = place(blocks, by_time);
  const int64_t sized = place(blocks, by_size);
  m.arena_bytes = static_cast<size_t>(timely < sized ? place(blocks, by_time) : sized);
  m.offset.assign(r.storages.size(), -1);
  m.host.assign(r.storages.size(), kNone);
  m.scratch_offset.assign(s.groups.size(), -1);
  m.scratch_bytes.assign(s.groups.size(), 0);
  m.scratch_host.assign(s.groups.size(), kNone);
  for (size_t n = 0; n < blocks.size(); ++n) {
    const Block& b = blocks[n];
    for (uint32_t st : b.storages) {
      m.offset[st] = b.offset;
      m.host[st] = b.host;
      m.hosted += b.host != kNone;
    }
    if (n < scratch_from) continue;
    m.scratch_offset[b.first] = b.offset;
    m.scratch_host[b.first] = b.host;
    m.scratch_bytes[b.first] = b.bytes;
  }
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    int64_t live = 0;
    for (const Block& b : blocks) live += b.first <= g && g <= b.last ? b.bytes : 0;
    m.lower_bound_bytes = std::max(m.lower_bound_bytes, static_cast<size_t>(live));
  }
  return m;
}

void verify_memory(const Recording& r, const Schedule& s, const MemoryPlan& m) {
  std::vector<uint32_t> all;
  for (uint32_t st = 0; st < r.storages.size(); ++st) {
    if (!planned(r, s, m, st)) continue;
    const uint32_t host = m.host[st];
    const int64_t room =
        host == kNone ? static_cast<int64_t>(m.arena_bytes) : aligned(r.storages[host].bytes);
    BRRR_CHECK(m.offset[st] >= 0 && m.offset[st] + aligned(r.storages[st].bytes) <= room,
               "graph: storage {} lies outside the memory planned for it", st);
    const bool written_over = host != kNone && m.last[st] == m.first[host] && m.offset[st] == 0 &&
                              takes_over(r, s.groups[m.last[st]], st, host);
    BRRR_CHECK(host == kNone || written_over || m.last[st] < m.first[host],
               "graph: storage {} lives in storage {} when that is written", st, host);
    for (uint32_t o : all) {
      if (m.host[o] != host) continue;
      const bool apart = m.offset[o] + aligned(r.storages[o].bytes) <= m.offset[st] ||
                         m.offset[st] + aligned(r.storages[st].bytes) <= m.offset[o];
      const bool in_place =
          m.offset[o] == m.offset[st] &&
          ((m.last[o] == m.first[st] && takes_over(r, s.groups[m.first[st]], o, st)) ||
           (m.last[st] == m.first[o] && takes_over(r, s.groups[m.first[o]], st, o)));
      const bool at_once = m.first[o] <= m.last[st] && m.first[st] <= m.last[o];
      BRRR_CHECK(
          apart || !at_once || in_place || r.storages[st].bytes == 0 || r.storages[o].bytes == 0,
          "graph: storages {} and {} are live at once and overlap", o, st);
    }
    for (uint32_t g = m.first[st]; g <= m.last[st]; ++g) {
      const bool apart = m.scratch_offset[g] + m.scratch_bytes[g] <= m.offset[st] ||
                         m.offset[st] + aligned(r.storages[st].bytes) <= m.scratch_offset[g];
      BRRR_CHECK(!m.scratch_bytes[g] || m.scratch_host[g] != host || apart,
                 "graph: storage {} overlaps what kernel {} takes for itself", st, g);
    }
    all.push_back(st);
  }
}

}  // namespace brrr::graph
