// Memory of temporaries: offline best fit by lifetime, in survivors not yet written and the arena.
#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "graph/schedule.h"

namespace brrr::graph {

namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(size_t bytes) {
  return (static_cast<int64_t>(bytes) + kAlign - 1) / kAlign * kAlign;
}

struct Block {
  std::vector<uint32_t> storages;  // More than one: each is written in place over the one before.
  int64_t bytes;
  uint32_t first, last;
  int64_t offset = -1;
  uint32_t host = kNone;
};

void find_lives(const Recording& r, const Schedule& s, MemoryPlan& m) {
  m.first.assign(r.storages.size(), kNone);
  m.last.assign(r.storages.size(), 0);
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    for (uint32_t at : s.groups[g].instrs) {
      const Instr& i = r.instrs[at];
      for (uint32_t k = i.first_in; k < i.first_out + i.n_out; ++k) {
        if (r.operands[k] == kNone) continue;
        const uint32_t st = r.value(r.operands[k]).storage;
        m.first[st] = std::min(m.first[st], g);
        m.last[st] = g;
      }
    }
  }
}

bool planned(const Recording& r, const Schedule& s, const MemoryPlan& m, uint32_t st) {
  const StorageInfo& info = r.storages[st];
  if (info.origin != Origin::Internal || !s.stored[st] || m.first[st] == kNone) return false;
  // On a GPU host data stay where they were uploaded to.
  const bool uploaded = info.device != kCPU && is_host_data(r.instrs[info.maker]);
  return !uploaded && !r.survives(st);
}

// In group g every access to `st` is dense over the whole storage: element i at iteration i.
bool elementwise(const Recording& r, const Group& g, uint32_t st) {
  if (!g.fused) return false;
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

// Group g is done with `st` element by element and leaves its memory alone. A storage that others
// have read is stored by whoever writes it, even for the last time.
bool leaves(const Recording& r, const Group& g, uint32_t st) {
  if (!elementwise(r, g, st)) return false;
  return std::none_of(g.instrs.begin(), g.instrs.end(), [&](uint32_t at) {
    const Instr& i = r.instrs[at];
    return std::any_of(r.out(i), r.out(i) + i.n_out,
                       [&](uint32_t v) { return r.value(v).storage == st; });
  });
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
      if (r.storages[before].bytes != r.storages[st].bytes || !leaves(r, s.groups[at], before)) {
        continue;
      }
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

// Puts blocks, the largest first, into survivors that are written after the block's last use.
void host_blocks(const Recording& r, const MemoryPlan& m, std::vector<Block>& blocks,
                 const std::vector<size_t>& by_size, const std::vector<uint32_t>& hosts,
                 uint32_t from) {
  std::vector<std::vector<const Block*>> guests(hosts.size());
  for (size_t n : by_size) {
    Block& b = blocks[n];
    if (b.first < from || b.bytes < kLeastGuest) continue;
    for (size_t h = 0; h < hosts.size() && b.host == kNone; ++h) {
      if (m.first[hosts[h]] <= b.last) continue;
      const int64_t at = tightest_gap(b, guests[h]);
      if (at + b.bytes > static_cast<int64_t>(r.storages[hosts[h]].bytes)) continue;
      b.host = hosts[h];
      b.offset = at;
      guests[h].push_back(&b);
    }
  }
}

}  // namespace

MemoryPlan plan_memory(const Recording& r, const Schedule& s, const std::vector<uint32_t>& hosts,
                       uint32_t from) {
  MemoryPlan m;
  find_lives(r, s, m);
  std::vector<Block> blocks = make_blocks(r, s, m);
  std::vector<size_t> by_size(blocks.size()), by_time(blocks.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  by_time = by_size;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  host_blocks(r, m, blocks, by_size, hosts, from);
  const int64_t timely = place(blocks, by_time);
  const int64_t sized = place(blocks, by_size);
  m.arena_bytes = static_cast<size_t>(timely < sized ? place(blocks, by_time) : sized);
  m.offset.assign(r.storages.size(), -1);
  m.host.assign(r.storages.size(), kNone);
  for (const Block& b : blocks) {
    for (uint32_t st : b.storages) {
      m.offset[st] = b.offset;
      m.host[st] = b.host;
      m.hosted += b.host != kNone;
    }
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
    BRRR_CHECK(m.offset[st] >= 0 &&
                   m.offset[st] + aligned(r.storages[st].bytes) <=
                       static_cast<int64_t>(host == kNone ? m.arena_bytes : r.storages[host].bytes),
               "graph: storage {} lies outside the memory planned for it", st);
    BRRR_CHECK(host == kNone || m.last[st] < m.first[host],
               "graph: storage {} lives in storage {} when that is written", st, host);
    for (uint32_t o : all) {
      if (m.host[o] != host) continue;
      const bool apart = m.offset[o] + aligned(r.storages[o].bytes) <= m.offset[st] ||
                         m.offset[st] + aligned(r.storages[st].bytes) <= m.offset[o];
      const bool in_place = m.offset[o] == m.offset[st] &&
                            ((m.last[o] == m.first[st] && leaves(r, s.groups[m.first[st]], o) &&
                              elementwise(r, s.groups[m.first[st]], st)) ||
                             (m.last[st] == m.first[o] && elementwise(r, s.groups[m.first[o]], o) &&
                              leaves(r, s.groups[m.first[o]], st)));
      const bool at_once = m.first[o] <= m.last[st] && m.first[st] <= m.last[o];
      BRRR_CHECK(
          apart || !at_once || in_place || r.storages[st].bytes == 0 || r.storages[o].bytes == 0,
          "graph: storages {} and {} are live at once and overlap", o, st);
    }
    all.push_back(st);
  }
}

}  // namespace brrr::graph
