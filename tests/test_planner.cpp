// The compiler's passes on recordings: schedules keep dependences and memory plans overlap nothing
// live, according to independent checkers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "graph/plan.h"
#include "graph/rematerialise.h"
#include "ops/program/cpu.h"
#include "tests/fuzz_steps.h"
#include "tests/recorded.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;
using graph::kNone;
using test::record;

namespace {

graph::Recording record_program(uint64_t seed, int length, fuzz::Kind kind) {
  fuzz::State s = fuzz::make_state(seed, kind);
  const fuzz::Program p = fuzz::generate(seed, length, true, kind);
  const bool net = kind == fuzz::Kind::Net;
  const Tensor x = net ? randn({512, fuzz::kWidth}) : randn({4, 6});
  const Tensor y = randint(0, 4, {x.size(0)});
  return record([&] {
    fuzz::Machine m{s, 0, {x, y}};
    for (const auto* list : {&s.leaves, &s.held}) {
      for (const Tensor& t : *list) m.push(t);
    }
    m.run(p);
    return std::vector<Tensor>(m.pool.end() - 3, m.pool.end());
  });
}

// The elements of its storage that a value refers to, in row-major order.
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

// Whether q repeats each element of p for a whole row.
bool expands(const std::vector<int64_t>& p, const std::vector<int64_t>& q, int64_t row) {
  bool is = row > 0 && q.size() == p.size() * static_cast<size_t>(row);
  for (size_t i = 0; is && i < q.size(); ++i) is = q[i] == p[i / static_cast<size_t>(row)];
  return is;
}

// Uses that share an element, one of them a write, run in program order; within one kernel they use
// the same element in the same iteration, or a per-row scalar throughout its row.
bool keeps_order(const graph::Recording& r, const graph::Schedule& s) {
  for (const auto& uses : uses_of(r, s)) {
    for (size_t b = 0; b < uses.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        const Use &x = uses[a], &y = uses[b];
        if (x.instr == y.instr || (!x.write && !y.write) || x.group < y.group) continue;
        const auto p = elements(r.value(x.value)), q = elements(r.value(y.value));
        if (!overlap(p, q)) continue;
        if (x.group > y.group || !s.groups[x.group].fused) return false;
        const int64_t row = s.groups[x.group].part_of(x.instr).domain.row;
        if (p != q && (y.write || !expands(p, q, row))) return false;
      }
    }
  }
  return true;
}

// Dropped instructions write nothing that is read or that survives.
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

// Every use of the storage in group g has element n in iteration n.
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

// Groups in execution order: those of a strip once for each part.
std::vector<uint32_t> runs_of(const graph::Schedule& s) {
  std::vector<uint32_t> runs;
  for (uint32_t g = 0; g < s.groups.size();) {
    const graph::Strip* const strip = s.strips.of(g);
    const uint32_t end = strip ? strip->last + 1 : g + 1;
    for (int64_t part = 0; part < (strip ? strip->parts : 1); ++part) {
      for (uint32_t k = g; k < end; ++k) runs.push_back(k);
    }
    g = end;
  }
  return runs;
}

// Simulates the schedule with an owner per line of the arena and of survivors with temporaries.
bool overlaps_nothing(const graph::Recording& r, const graph::Schedule& s,
                      const graph::MemoryPlan& m) {
  const auto uses = uses_of(r, s);
  const std::vector<uint32_t> runs = runs_of(s);
  std::map<uint32_t, std::vector<uint32_t>> owners;
  std::vector<uint32_t> first(uses.size(), kNone), last(uses.size(), 0);
  auto room = [&](uint32_t host) { return host == kNone ? m.arena_bytes : m.rooms[host].bytes; };
  auto bytes = [&](uint32_t st) {
    return r.storages[st].bytes / static_cast<size_t>(s.strips.parts(st));
  };
  // Live ranges within a part start anew with each part.
  auto find_lives = [&](size_t begin, size_t end, uint32_t home) {
    for (uint32_t st = 0; st < uses.size(); ++st) {
      if ((s.strips.home.empty() ? kNone : s.strips.home[st]) != home) continue;
      first[st] = kNone, last[st] = 0;
      for (size_t at = begin; at < end; ++at) {
        for (const Use& u : uses[st]) {
          if (u.group != runs[at]) continue;
          first[st] = std::min(first[st], static_cast<uint32_t>(at));
          last[st] = std::max(last[st], static_cast<uint32_t>(at));
        }
      }
    }
  };
  find_lives(0, runs.size(), kNone);
  for (uint32_t at = 0; at < runs.size(); ++at) {
    const uint32_t g = runs[at];
    if (const graph::Strip* const strip = s.strips.of(g); strip && g == strip->first) {
      const auto home = static_cast<uint32_t>(strip - s.strips.all.data());
      find_lives(at, at + strip->last - strip->first + 1, home);
    }
    for (uint32_t st = 0; st < uses.size(); ++st) {
      if (m.storages[st].offset < 0 || uses[st].empty()) continue;
      const uint32_t host = m.storages[st].host;
      const auto begin = static_cast<size_t>(m.storages[st].offset), end = begin + bytes(st);
      if (begin % 64 || end > room(host)) return false;
      for (size_t n = 0; host != kNone && n < m.rooms[host].owners.size(); ++n) {
        const auto [o, from] = m.rooms[host].owners[n];
        if (end <= from || from + r.storages[o].bytes <= begin || last[st] < first[o]) continue;
        // It may die in the kernel that writes the survivor over it.
        if (last[st] > first[o] || begin != from || bytes(st) != r.storages[o].bytes ||
            !dense_in(r, s, uses[st], runs[last[st]], st) ||
            !dense_in(r, s, uses[o], runs[last[st]], o)) {
          return false;
        }
      }
      std::vector<uint32_t>& owner = owners[host];
      owner.resize(room(host) / 64 + 1, kNone);
      const auto from = static_cast<size_t>(m.storages[st].offset / 64);
      const size_t to = from + (bytes(st) + 63) / 64;
      uint32_t replaced = kNone;
      for (size_t line = from; line < to && first[st] == at; ++line) {
        const uint32_t o = std::exchange(owner[line], st);
        if (o == kNone || o == st || o == replaced) continue;  // Checked before.
        replaced = o;
        if (first[o] <= at && last[o] >= at &&
            (last[o] > at || first[o] == at || m.storages[o].offset != m.storages[st].offset ||
             !dense_in(r, s, uses[o], g, o) || !dense_in(r, s, uses[st], g, st))) {
          return false;
        }
      }
      for (size_t line = from; line < to && first[st] < at && at <= last[st]; ++line) {
        if (owner[line] != st && !(at == last[st] && first[owner[line]] == at)) return false;
      }
    }
  }
  return true;
}

void check_schedule(const graph::Recording& r, const graph::Schedule& s) {
  CHECK_NOTHROW(graph::verify_schedule(r, s));
  CHECK(keeps_order(r, s));
  CHECK(drops_only_the_dead(r, s));
  const graph::MemoryPlan m = graph::plan_memory(r, s);
  CHECK_NOTHROW(graph::verify_memory(r, s, m));
  CHECK(overlaps_nothing(r, s, m));
  CHECK(m.lower_bound_bytes <= m.arena_bytes);
  const auto from = static_cast<uint32_t>(s.groups.size() / 3);
  graph::MemoryRules rules{.rooms = {}, .from = from, .scratch = {}};
  graph::Room row;  // Every other survivor has a buffer of its own, the rest share one.
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
  for (size_t st = 0; st < hosted.storages.size(); ++st) {
    CHECK((hosted.storages[st].host == kNone || hosted.storages[st].first >= from));
  }
  for (const graph::Group& g : s.groups) {
    for (const graph::Part& part : g.parts) {
      CHECK_NOTHROW(program::cpu_kernel(graph::program_of(r, part, s).program));
    }
  }
}

struct Planned {
  int in_parts = 0, anew = 0;
};

void check_passes(const graph::Recording& r, Planned* planned = nullptr) {
  for (const bool fuse : {true, false}) check_schedule(r, graph::make_schedule(r, fuse));
  for (const int64_t part_bytes : {64, 16 << 10}) {
    const graph::Target target{.part_bytes = part_bytes};
    const graph::Schedule s = graph::make_schedule(r, true, target);
    check_schedule(r, s);
    const graph::Rematerialised less = rematerialise(r, {.memory_budget = 0.5}, target);
    check_schedule(less.recording ? *less.recording : r, less.schedule);
    if (!planned) continue;
    planned->in_parts += !s.strips.all.empty();
    planned->anew += less.recording != nullptr;
  }
}

}  // namespace

TEST_CASE("planner: fuzzed recordings keep dependences and overlap nothing") {
  const char *from = std::getenv("BRRR_FUZZ_SEED"), *count = std::getenv("BRRR_FUZZ_PACKS");
  const uint64_t first = from ? std::strtoull(from, nullptr, 10) : 5000001;
  const int programs = count ? std::atoi(count) : test::random_cases(150, 5000);
  Planned planned;
  for (int k = 0; k < programs; ++k) {
    CAPTURE(k);
    const fuzz::Kind kind = k % 3 ? fuzz::Kind::Anything : fuzz::Kind::Net;
    check_passes(record_program(first + static_cast<uint64_t>(k), 10 + k % 30, kind), &planned);
  }
  MESSAGE(planned.in_parts << " schedules in parts, " << planned.anew << " with values made anew");
  CHECK(planned.in_parts > programs / 8);
  CHECK(planned.anew > programs / 8);
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

// Compilation cost: it was seconds for the updates of a GPT's parameters.
TEST_CASE("planner: the text of a step does not grow with the number of parameters" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  std::vector<size_t> text;
  for (const int n : {40, 80}) {  // So large that both make the same recomputations.
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
    text.push_back(graph::Plan::make(r, {})->source().all().size());
  }
  CHECK(text[0] > 1000);
  CHECK(text[1] < text[0] + 100);  // Names and indices of arguments have more digits.
}

TEST_CASE("planner: thousands of blocks are placed in the order of time") {
  const auto run = [](Mode mode) {
    manual_seed(3);
    const Tensor w = (randn({4, 4}) * 0.5).set_requires_grad(), x = randn({2, 4});
    auto step = brrr::step(
        [&] {
          w.set_grad({});
          Tensor h = x;
          for (int t = 0; t < 1200; ++t) h = h.matmul(w).tanh() + x;
          const Tensor loss = h.sum();
          loss.backward();
          return loss.detach();
        },
        mode);
    const Tensor loss = step();
    return std::pair(loss.to_vector<float>(), w.grad().to_vector<float>());
  };
  CHECK(run(Mode::Eager) == run(Mode::Graph));
}
