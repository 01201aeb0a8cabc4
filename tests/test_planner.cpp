// The compiler's passes on recordings: schedules keep dependences and memory plans overlap nothing
// that is live, by checkers of their own.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "graph/group.h"
#include "graph/plan.h"
#include "ops/program/cpu.h"
#include "tests/fuzz_steps.h"
#include "tests/recorded.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;
using graph::kNone;
using test::record;

namespace {

graph::Recording record_program(uint64_t seed, int length) {
  fuzz::State s = fuzz::make_state(seed);
  const fuzz::Program p = fuzz::generate(seed, length, true);
  const Tensor x = randn({4, 6}), y = randint(0, 4, {4});
  return record([&] {
    fuzz::Machine m{s, 0, {x, y}};
    for (const auto* list : {&s.leaves, &s.held}) {
      for (const Tensor& t : *list) m.push(t);
    }
    m.run(p);
    return std::vector<Tensor>(m.pool.end() - 3, m.pool.end());
  });
}

// The elements of its storage that a value names, in row-major order.
std::vector<int64_t> elements(const graph::Value& v) {
  std::vector<int64_t> at{v.offset};
  for (int d = 0; d < v.ndim; ++d) {
    std::vector<int64_t> next;
    for (const int64_t base : at) {
      for (int64_t i = 0; i < v.sizes[d]; ++i) next.push_back(base + i * v.strides[d]);
    }
    at.swap(next);
  }
  return at;
}

bool overlap(std::vector<int64_t> a, std::vector<int64_t> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<int64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return !both.empty();
}

struct Use {
  uint32_t value, instr, group;
  bool write;
};

// Uses of every storage by the scheduled instructions, in program order.
std::vector<std::vector<Use>> uses_of(const graph::Recording& r, const graph::Schedule& s) {
  std::vector<std::vector<Use>> uses(r.storages.size());
  std::vector<uint32_t> group(r.instrs.size(), kNone);
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    for (uint32_t i : s.groups[g].instrs) {
      CHECK(group[i] == kNone);
      group[i] = g;
    }
  }
  for (uint32_t at = 0; at < r.instrs.size(); ++at) {
    if (group[at] == kNone) continue;
    const graph::Instr& i = r.instrs[at];
    for (int k = 0; k < i.n_in + i.n_out; ++k) {
      const uint32_t id = r.operands[i.first_in + static_cast<uint32_t>(k)];
      if (id != kNone) uses[r.value(id).storage].push_back({id, at, group[at], k >= i.n_in});
    }
  }
  return uses;
}

// Uses that share an element, one of them a write, run in program order; within one kernel they are
// the same element in the same iteration.
bool keeps_order(const graph::Recording& r, const graph::Schedule& s) {
  for (const auto& uses : uses_of(r, s)) {
    for (size_t b = 0; b < uses.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        const Use &x = uses[a], &y = uses[b];
        if (x.instr == y.instr || (!x.write && !y.write) || x.group < y.group) continue;
        const auto p = elements(r.value(x.value)), q = elements(r.value(y.value));
        if (!overlap(p, q)) continue;
        if (x.group > y.group || !s.groups[x.group].fused || p != q) return false;
      }
    }
  }
  return true;
}

// What is left out writes nothing that somebody reads or that is left afterwards.
bool drops_only_the_dead(const graph::Recording& r, const graph::Schedule& s) {
  const auto uses = uses_of(r, s);
  std::vector<bool> kept(r.instrs.size());
  for (const auto& g : s.groups) {
    for (uint32_t i : g.instrs) kept[i] = true;
  }
  for (size_t at = 0; at < r.instrs.size(); ++at) {
    const graph::Instr& i = r.instrs[at];
    if (kept[at] || i.op->is_view()) continue;
    for (int k = 0; k < i.n_out; ++k) {
      const uint32_t st = r.value(r.out(i)[k]).storage;
      if (r.storages[st].origin == graph::Origin::External || r.survives(st)) return false;
      for (const Use& u : uses[st]) {
        if (u.instr > at && !u.write && r.value(u.value).numel > 0) return false;
      }
    }
  }
  return true;
}

// Every use of the storage in group g is its element n in iteration n.
bool dense_in(const graph::Recording& r, const graph::Schedule& s, const std::vector<Use>& uses,
              uint32_t g, uint32_t st) {
  const graph::Group& group = s.groups[g];
  if (!group.fused && r.instrs[group.instrs[0]].op->kind != OpKind::Pointwise) return false;
  std::vector<int64_t> all(r.storages[st].bytes / itemsize(r.value(uses[0].value).dtype));
  std::iota(all.begin(), all.end(), 0);
  return std::all_of(uses.begin(), uses.end(), [&](const Use& u) {
    return u.group != g || elements(r.value(u.value)) == all;
  });
}

// Plays the schedule over owned lines: of the arena, and of each survivor that takes guests in.
bool overlaps_nothing(const graph::Recording& r, const graph::Schedule& s,
                      const graph::MemoryPlan& m) {
  const auto uses = uses_of(r, s);
  std::map<uint32_t, std::vector<uint32_t>> owners;
  std::vector<uint32_t> first(uses.size(), kNone), last(uses.size(), 0);
  auto room = [&](uint32_t host) { return host == kNone ? m.arena_bytes : m.rooms[host].bytes; };
  for (size_t st = 0; st < uses.size(); ++st) {
    for (const Use& u : uses[st]) {
      first[st] = std::min(first[st], u.group);
      last[st] = std::max(last[st], u.group);
    }
  }
  for (uint32_t g = 0; g < s.groups.size(); ++g) {
    for (uint32_t st = 0; st < uses.size(); ++st) {
      if (m.offset[st] < 0 || uses[st].empty()) continue;
      const uint32_t host = m.host[st];
      const auto begin = static_cast<size_t>(m.offset[st]), end = begin + r.storages[st].bytes;
      if (begin % 64 || end > room(host)) return false;
      for (size_t n = 0; host != kNone && n < m.rooms[host].owners.size(); ++n) {
        const auto [o, at] = m.rooms[host].owners[n];
        if (end <= at || at + r.storages[o].bytes <= begin || last[st] < first[o]) continue;
        // Where it dies in the kernel that writes the survivor, that writes over it.
        if (last[st] > first[o] || begin != at || r.storages[st].bytes != r.storages[o].bytes ||
            !dense_in(r, s, uses[st], last[st], st) || !dense_in(r, s, uses[o], last[st], o)) {
          return false;
        }
      }
      std::vector<uint32_t>& owner = owners[host];
      owner.resize(room(host) / 64 + 1, kNone);
      const auto from = static_cast<size_t>(m.offset[st] / 64);
      const size_t to = from + (r.storages[st].bytes + 63) / 64;
      uint32_t replaced = kNone;
      for (size_t line = from; line < to && first[st] == g; ++line) {
        const uint32_t o = std::exchange(owner[line], st);
        if (o == kNone || o == replaced) continue;  // As in the line before, which was looked at.
        replaced = o;
        if (o != kNone && last[o] >= g &&
            (last[o] > g || first[o] == g || m.offset[o] != m.offset[st] ||
             !dense_in(r, s, uses[o], g, o) || !dense_in(r, s, uses[st], g, st))) {
          return false;
        }
      }
      for (size_t line = from; line < to && first[st] < g && g <= last[st]; ++line) {
        if (owner[line] != st && !(g == last[st] && first[owner[line]] == g)) return false;
      }
    }
  }
  return true;
}

void check_passes(const graph::Recording& r) {
  for (const bool fuse : {true, false}) {
    const graph::Schedule s = graph::make_schedule(r, fuse);
    CHECK_NOTHROW(graph::verify_schedule(r, s));
    CHECK(keeps_order(r, s));
    CHECK(drops_only_the_dead(r, s));
    const graph::MemoryPlan m = graph::plan_memory(r, s);
    CHECK_NOTHROW(graph::verify_memory(r, s, m));
    CHECK(overlaps_nothing(r, s, m));
    CHECK(m.lower_bound_bytes <= m.arena_bytes);
    const auto from = static_cast<uint32_t>(s.groups.size() / 3);
    graph::MemoryRules rules{.rooms = {}, .from = from, .scratch = {}};
    graph::Room row;  // Every other survivor has a room of its own, the rest share one.
    for (size_t k = 0; k < r.survivors.size(); ++k) {
      const uint32_t st = r.survivors[k];
      if (k % 2) {
        rules.rooms.push_back({r.storages[st].bytes, {{st, 0}}});
        continue;
      }
      row.owners.emplace_back(st, row.bytes);
      row.bytes += (r.storages[st].bytes + 4095) / 4096 * 4096;
    }
    rules.rooms.push_back(row);
    const graph::MemoryPlan hosted = graph::plan_memory(r, s, rules);
    CHECK_NOTHROW(graph::verify_memory(r, s, hosted));
    CHECK(overlaps_nothing(r, s, hosted));
    for (size_t st = 0; st < hosted.host.size(); ++st) {
      CHECK((hosted.host[st] == kNone || hosted.first[st] >= from));
    }
    for (const graph::Group& g : s.groups) {
      for (const graph::Part& part : g.parts) {
        CHECK_NOTHROW(program::cpu_kernel(graph::program_of(r, part, s).program));
      }
    }
  }
}

}  // namespace

TEST_CASE("planner: fuzzed recordings keep dependences and overlap nothing") {
  const int programs = test::random_cases(150, 5000);
  for (int k = 0; k < programs; ++k) {
    CAPTURE(k);
    check_passes(record_program(5000001 + static_cast<uint64_t>(k), 10 + k % 30));
  }
}

TEST_CASE("planner: random sizes and lifetimes fit into little more than their bound") {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const graph::Recording r = record([&] {
      std::vector<Tensor> pool{zeros({64}), zeros({4096})};
      for (int k = 0; k < 60; ++k) {
        const Tensor &a = pool[random() % pool.size()], &b = pool[random() % pool.size()];
        const Tensor c = cat({a.slice(0, 0, 2000 + random() % 3000), b.slice(0, 0, 1000)});
        pool[random() % pool.size()] = random() % 2 ? c : c * 2.0;
        if (random() % 4 == 0) pool.push_back(c.slice(0, 0, 100) + 1.0);
      }
      return std::vector<Tensor>{pool[0]};
    });
    check_passes(r);
    const graph::Schedule s = graph::make_schedule(r, true);
    const graph::MemoryPlan m = graph::plan_memory(r, s);
    CHECK(static_cast<double>(m.arena_bytes) <= 1.35 * static_cast<double>(m.lower_bound_bytes));
  }
}

TEST_CASE("pitfall C2: training steps need an arena of at most 1.1 times the bound") {
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {784, 256, 128, 10}, {10, 64, 64, 64, 64, 2}, {32, 1000, 10}, {3, 5, 7, 2}}) {
    for (const char* activation : {"relu", "gelu"}) {
      models::MLP model({.sizes = sizes, .activation = activation, .dropout = 0.1});
      optim::AdamW opt(model.parameters(), {});
      const Tensor x = randn({32, sizes[0]}), y = randint(0, sizes.back(), {32});
      const graph::Recording r = record([&] {
        const Tensor loss = cross_entropy(model(x), y);
        opt.zero_grad();
        loss.backward();
        opt.step();
        return std::vector<Tensor>{loss};
      });
      check_passes(r);
      const graph::MemoryPlan m = graph::plan_memory(r, graph::make_schedule(r, true));
      CHECK(static_cast<double>(m.arena_bytes) <= 1.1 * static_cast<double>(m.lower_bound_bytes));
    }
  }
}

// What a compiler pays for: it took seconds for the updates of a GPT's parameters.
TEST_CASE("planner: the text of a step does not grow with the number of parameters" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  std::vector<size_t> text;
  for (const int n : {40, 80}) {  // So large that what is made anew in one is in the other, too.
    std::vector<Tensor> parameters, rows;
    for (int k = 0; k < n; ++k) {
      parameters.push_back(randn({k + 2, 16}).set_requires_grad(true));
    }
    optim::AdamW opt(parameters, {});
    const graph::Recording r = record([&] {
      opt.zero_grad();
      const Tensor loss = gelu(cat(parameters, 0)).square().mean();
      loss.backward();
      const Tensor norm = optim::clip_grad_norm_(parameters, 1.0);
      opt.step(isnan((loss + norm) * 0.0));
      return std::vector<Tensor>{loss};
    });
    StepStats stats;
    text.push_back(graph::Plan::make(r, {}, stats)->source().size());
  }
  CHECK(text[0] > 1000);
  CHECK(text[1] < text[0] + 100);  // Names and numbers of arguments have more digits.
}
