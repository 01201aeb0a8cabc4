// Random step programs give the same bits in eager and in graph mode: results, state, gradients,
// handles that escape, versions, strides and the random stream, after every call.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fuzz_world.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace brrr::fuzz {

namespace {

struct Count {
  int instructions = 0, errors = 0;
  uint64_t replays = 0, recordings = 0, rematerialised = 0;
  int in_parts = 0;  ///< Steps of which some kernels ran part by part.
};

struct Setup;
using Check = std::string (*)(const std::vector<Program>&, const Setup&, Count*);

struct Setup {
  Check check;
  uint64_t seed;
  int calls;
  bool branches;  ///< The host branches and batches change from call to call.
  Kind kind;
  StepOptions options;
};

// The first difference between the worlds when the graph world's calls are replays, or "".
std::string same_bits(const std::vector<Program>& programs, const Setup& setup, Count* count) {
  World eager(programs.size(), setup.seed, setup.kind);
  World graph(programs.size(), setup.seed, setup.kind);
  auto fn = [&](const Tensor& x, const Tensor& y) { return graph.run(programs, x, y); };
  auto step = brrr::step(fn, setup.options);
  for (int call = 0; call < setup.calls; ++call) {
    const std::string at = "call " + std::to_string(call) + ": ";
    const bool smaller = setup.branches && (setup.seed + static_cast<uint64_t>(call)) % 5 == 0;
    const auto mine = eager.batch(call, smaller), its = graph.batch(call, smaller);
    const RngState random{setup.seed, static_cast<uint64_t>(call) * 1000};
    eager.call = graph.call = call;
    set_rng_state(random);
    eager.run(programs, mine[0], mine[1]);
    const RngState after = rng_state();
    set_rng_state(random);
    try {
      step(its[0], its[1]);
    } catch (const Error& e) {
      return at + "the graph step threw: " + e.what();
    }
    if (rng_state().draw != after.draw) return at + "another number of draws";
    if (eager.errors != graph.errors) return at + "errors in one mode only";
    for (int e : eager.errors) count->errors += e;
    for (const Program& p : programs) count->instructions += static_cast<int>(p.size());
    if (auto d = compare(eager, graph); !d.empty()) return at + d;
  }
  const StepStats stats = step.stats();
  count->replays += stats.replays;
  count->recordings += stats.recordings;
  count->rematerialised += stats.rematerialised;
  count->in_parts += step.explain().find("parts, one after the other") != std::string::npos;
  return stats.fallbacks ? "fallback: " + stats.last_fallback : "";
}

// The change left by a call that throws in its middle, or whose kernels fail at its end, or "".
std::string atomic(const std::vector<Program>& programs, const Setup& setup, Count* count) {
  World graph(1, setup.seed, setup.kind), untouched(1, setup.seed, setup.kind);
  const Program& p = programs[0];
  bool bad_index = false;
  auto fn = [&](const Tensor& x, const Tensor& y) {
    auto results = graph.run(programs, x, y);
    if (bad_index) results.push_back(embedding(graph.states[0].leaves[2].detach(), y + 99));
    return results;
  };
  auto step = brrr::step(fn, setup.options);
  for (int call = 0; call < setup.calls; ++call) {
    const std::string at = "call " + std::to_string(call) + ": ";
    // The user's own handles, which no step can undo. Held in both, as live views forbid writes.
    const std::vector<State> handles = graph.states, others = untouched.states;
    const RngState random = rng_state();
    graph.stop = SIZE_MAX;
    if (call % 2) {  // Between failures the step advances.
      untouched.run(programs, untouched.batch(1)[0], untouched.batch(1)[1]);
      set_rng_state(random);
      bad_index = false;
      step(graph.batch(1)[0], graph.batch(1)[1]);
      if (auto d = compare(untouched, graph); !d.empty()) return at + d;
      continue;
    }
    bad_index = call % 4;
    graph.stop = bad_index ? SIZE_MAX : (setup.seed + static_cast<uint64_t>(call)) % (p.size() + 1);
    bool threw = false;
    try {
      step(graph.batch(1)[0], graph.batch(1)[1]);
    } catch (const std::exception&) {
      threw = true;
    }
    if (!threw) return at + "nothing was thrown";
    graph.states = handles;
    if (rng_state().draw != random.draw) return at + "draws are gone";
    count->instructions += static_cast<int>(p.size());
    if (auto d = compare(untouched, graph); !d.empty()) return at + d;
  }
  return "";
}

// The first difference between a frozen step and eager calls, or "".
std::string frozen(const std::vector<Program>& all, const Setup& setup, Count* count) {
  std::vector<Program> programs = all;
  // A frozen step does not run the function, so handles that it assigns stay as they are.
  std::erase_if(programs[0], [](const Ins& i) { return i.op == "keep"; });
  World eager(1, setup.seed, setup.kind), graph(1, setup.seed, setup.kind);
  auto fn = [&](const Tensor& x, const Tensor& y) {
    auto results = graph.run(programs, x, y);
    graph.states[0].results.clear();
    return results;
  };
  auto step = brrr::step(fn, setup.options);
  for (int call = 0; call < setup.calls; ++call) {
    const std::string at = "call " + std::to_string(call) + ": ";
    const auto mine = eager.batch(call), its = graph.batch(call);
    const RngState random{setup.seed, static_cast<uint64_t>(call) * 1000};
    set_rng_state(random);
    const auto a = eager.run(programs, mine[0], mine[1]);
    const RngState after = rng_state();
    eager.states[0].results.clear();
    set_rng_state(random);
    const auto b = step(its[0], its[1]);
    if (rng_state().draw != after.draw) return at + "another number of draws";
    if (auto d = compare(eager, graph, true); !d.empty()) return at + d;
    for (size_t k = 0; k < a.size(); ++k) {
      if (!same_bits(a[k], b[k])) return at + "result " + std::to_string(k);
    }
    count->instructions += static_cast<int>(programs[0].size());
    if (call != 1) continue;
    try {
      step.freeze();
    } catch (const Error&) {
      ++count->errors;
      return "";
    }
  }
  return "";
}

// The check in a child process, so that a program that crashes can be shrunk too.
std::string outcome(const std::vector<Program>& programs, const Setup& setup) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGFPE, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    Count ignored;
    const std::string text = setup.check(programs, setup, &ignored);
    const bool sent = write(ends[1], text.data(), text.size()) >= 0;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text(4096, 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], text.data(), text.size()))));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? "crashed, signal " + std::to_string(WTERMSIG(status)) : text;
}

// Drops instructions while the programs still fail, first in large pieces.
std::string shrink(std::vector<Program> programs, Setup setup) {
  for (size_t k = 0; k < programs.size() && programs.size() > 1; ++k) {
    Setup one = setup;
    one.seed += k;
    if (!outcome({programs[k]}, one).empty()) {
      programs = {programs[k]};
      setup = one;
    }
  }
  for (Program& p : programs) {
    for (size_t piece = std::max<size_t>(1, p.size() / 2); piece > 0; piece /= 2) {
      for (size_t at = 0; at + piece <= p.size();) {
        const Program before = p;
        p.erase(p.begin() + static_cast<int64_t>(at), p.begin() + static_cast<int64_t>(at + piece));
        if (outcome(programs, setup).empty()) {
          p = before;
          at += piece;
        }
      }
    }
  }
  std::string text = "seed " + std::to_string(setup.seed) + ", " + std::to_string(setup.calls) +
                     " calls: " + outcome(programs, setup) + "\n";
  for (const Program& p : programs) text += to_string(p);
  return text;
}

// `packs` step functions of `per_pack` programs each; BRRR_FUZZ_SEED=n BRRR_FUZZ_PACKS=m: m of them
// from seed n on.
void fuzz(const std::string& what, Check check, int packs, int per_pack, int length, int calls,
          bool branches, StepOptions options, uint64_t first, Kind kind = Kind::Anything) {
  Count count;
  if (const char* from = std::getenv("BRRR_FUZZ_SEED")) first = std::strtoull(from, nullptr, 10);
  if (const char* n = std::getenv("BRRR_FUZZ_PACKS")) packs = std::atoi(n);
  int failures = 0;
  for (int pack = 0; pack < packs && failures < 3; ++pack) {
    const Setup setup{check,  first + static_cast<uint64_t>(pack * per_pack), calls, branches, kind,
                      options};
    if (std::getenv("BRRR_FUZZ_TRACE")) {
      std::fprintf(stderr, "%s seed %s\n", what.c_str(), std::to_string(setup.seed).c_str());
    }
    std::vector<Program> programs;
    for (int k = 0; k < per_pack; ++k) {
      programs.push_back(generate(setup.seed + static_cast<uint64_t>(k), length, branches, kind));
    }
    const bool apart = std::getenv("BRRR_FUZZ_FORK") != nullptr;  // To find crashes.
    if (apart ? outcome(programs, setup).empty() : setup.check(programs, setup, &count).empty()) {
      continue;
    }
    ++failures;
    FAIL_CHECK(what << " " << shrink(programs, setup));
  }
  MESSAGE(what << ": " << count.instructions << " instructions, " << count.errors << " errors, "
               << count.recordings << " recordings, " << count.replays << " replays, "
               << count.in_parts << " steps in parts, " << count.rematerialised << " recomputed");
}

}  // namespace

TEST_CASE("fuzz: recorded and walked programs equal eager ones") {
  fuzz("walker", same_bits, test::random_cases(400, 20000), 4, 14, 1, false, {}, 1);
}

TEST_CASE("fuzz: replayed programs equal eager ones") {
  test::TempCache cache;
  fuzz("replay", same_bits, test::random_cases(3, 4000), 5, 12, 3, false,
       {.build_at_first_call = true}, 1000001);
  fuzz("in parts", same_bits, test::random_cases(3, 4000), 5, 12, 3, false,
       {.build_at_first_call = true, .part_bytes = 64}, 10000001);
}

TEST_CASE("fuzz: nets, run in parts and with a memory budget, equal eager ones") {
  test::TempCache cache;
  const int nets = test::random_cases(1, 2000);
  fuzz("nets", same_bits, nets, 1, 12, 3, false, {.build_at_first_call = true}, 11000001,
       Kind::Net);
  fuzz("nets in parts", same_bits, nets, 1, 12, 3, false,
       {.verify_every = 2, .build_at_first_call = true, .part_bytes = 16 << 10}, 12000001,
       Kind::Net);
  fuzz("nets in small parts", same_bits, nets, 1, 12, 3, true, {.part_bytes = 1 << 10}, 13000001,
       Kind::Net);
  fuzz("nets in little memory", same_bits, nets, 1, 12, 3, false,
       {.build_at_first_call = true, .memory_budget = 0.5, .part_bytes = 16 << 10}, 14000001,
       Kind::Net);
  fuzz("nets, atomic", atomic, nets, 1, 10, 3, false,
       {.build_at_first_call = true, .part_bytes = 16 << 10}, 15000001, Kind::Net);
  fuzz("nets, frozen", frozen, nets, 1, 10, 4, false,
       {.build_at_first_call = true, .part_bytes = 16 << 10}, 16000001, Kind::Net);
}

TEST_CASE("fuzz: kernels built at the second call, and without fusion") {
  test::TempCache cache;
  fuzz("second call", same_bits, test::random_cases(2, 1000), 3, 10, 6, true, {}, 2000001);
  fuzz("unfused", same_bits, test::random_cases(100, 4000), 4, 14, 4, true,
       {.build_at_first_call = true, .fuse = false}, 3000001);
  fuzz("in little memory", same_bits, test::random_cases(100, 4000), 4, 14, 4, true,
       {.build_at_first_call = true, .fuse = false, .memory_budget = 1}, 9000001);
  fuzz("verified", same_bits, test::random_cases(50, 2000), 4, 14, 4, true,
       {.verify_every = 1, .build_at_first_call = true, .fuse = false}, 4000001);
}

TEST_CASE("fuzz: a step that throws has changed nothing") {
  // A step's second complete call, its fourth here, builds kernels.
  fuzz("atomic, walked", atomic, test::random_cases(400, 20000), 1, 16, 3, false, {}, 6000001);
  fuzz("atomic, built", atomic, test::random_cases(8, 20000), 1, 16, 7, false, {}, 6000001);
  fuzz("atomic, replayed", atomic, test::random_cases(200, 20000), 1, 16, 7, false,
       {.build_at_first_call = true, .fuse = false}, 7000001);
}

TEST_CASE("fuzz: a frozen step equals eager calls") {
  fuzz("frozen", frozen, test::random_cases(400, 20000), 1, 8, 6, false,
       {.build_at_first_call = true, .fuse = false}, 8000001);
}

}  // namespace brrr::fuzz
