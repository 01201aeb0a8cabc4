// Every figure that brrr promises and that is a ratio or a time, in one run of one process,
// interleaved: the bar, the measurement, whether it holds. See --help.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>

#include "tests/bench/bench.h"
#include "tests/bench/gpt_figures.h"
#include "tests/bench/measure/temporary.h"
#include "tests/bench/mlp_figures.h"
#include "tests/bench/probes.h"
#include "tests/bench/report.h"
#include "tests/bench/row_figures.h"
#include "tests/bench/scale_figures.h"
#include "tests/bench/tiny_steps.h"

namespace {

using namespace brrr::bench;
using brrr::Mode;
using brrr::StepOptions;
using brrr::Tensor;

constexpr const char* help =
    R"(bench_ratios: the figures brrr promises, measured in one run
  --only NAME       one part: dispatch, verify, replay, fusion, rows, memory, build, mlp, gpt
                    or scale
  --threads N       threads of brrr (1); the floors and the peer have one
  --cpu N           CPU of the main thread (the last one allowed)
  --json FILE       the tables as JSON
  --instr WHAT N    nothing but N times add, add_grad, verify, verify_grad or frozen, for callgrind
  --first-replay O  prints the milliseconds from a first call to the end of the first compiled
                    replay, optimizer O = sgd or adamw
  --scale NAME MODE prints what a GPT (2x64,8 4x128,12 6x512,2 12x768,1: layers, width, batch) takes
                    in a mode (eager, graph): megabytes handed out, megabytes resident, seconds to
                    build
Exit status: 0, 1 after an error, 2 if the modes disagree or a replay fell back. A bar that is
missed changes nothing: machines differ.
)";

// --- one-element adds ----------------------------------------------------------------------------

void adds(std::int64_t n, const Tensor& a, const Tensor& b) {
  for (std::int64_t k = 0; k < n; ++k) benchmark::DoNotOptimize(a + b);
}

std::array<Tensor, 2> add_operands(bool gradient) {
  const Tensor a = brrr::ones({1}), b = brrr::ones({1});
  a.set_requires_grad(gradient);
  b.set_requires_grad(gradient);
  return {a, b};
}

void dispatch(Report& report) {
  const auto plain = add_operands(false), grad = add_operands(true);
  std::vector<double> ns, ns_grad, torch, torch_grad;
  for (int r = 0; r < 3; ++r) {
    Turns turns;
    const int i = turns.add([&](std::int64_t n) { adds(n, plain[0], plain[1]); });
    const int j = turns.add([&](std::int64_t n) { adds(n, grad[0], grad[1]); });
    turns.measure(15);
    ns.push_back(turns.ns(i));
    ns_grad.push_back(turns.ns(j));
    for (const json& line : run_peer("--micro add1")) {
      (line["requires_grad"] ? torch_grad : torch).push_back(line["ns_per_op_median"]);
    }
  }
  report.show("one-element add", median(ns), "ns");
  report.show("one-element add, gradient recorded", median(ns_grad), "ns");
  if (torch.empty()) return;
  const auto note = [](double t) { return fmt::format("libtorch {:.0f} ns", t); };
  report.at_least("one-element add against libtorch", 25, median(torch) / median(ns), "x",
                  note(median(torch)));
  report.at_least("one-element add against libtorch, gradient recorded", 20,
                  median(torch_grad) / median(ns_grad), "x", note(median(torch_grad)));
}

// --- verify and frozen -------------------------------------------------------------------------

// Both calls replay the same kernels, and the frozen one does nothing else: the difference is the
// run of the user's function and its comparison with the recording.
void verify(Report& report) {
  ChainStep plain(chain_fn(false), Way::Graph), plain_frozen(chain_fn(false), Way::Frozen);
  ChainStep grad(chain_fn(true), Way::Graph), grad_frozen(chain_fn(true), Way::Frozen);
  Turns turns;
  const int a = turns.add([&](std::int64_t n) { plain.run(n); });
  const int b = turns.add([&](std::int64_t n) { plain_frozen.run(n); });
  const int c = turns.add([&](std::int64_t n) { grad.run(n); });
  const int d = turns.add([&](std::int64_t n) { grad_frozen.run(n); });
  turns.measure(25);
  const auto ops = [](const ChainStep& s) {
    return static_cast<double>(s.step.stats().ops_per_replay);
  };
  report.at_most("verify per recorded op", 20, (turns.ns(a) - turns.ns(b)) / ops(plain), "ns",
                 fmt::format("{} ops, call {:.0f} ns, frozen {:.0f} ns", ops(plain), turns.ns(a),
                             turns.ns(b)));
  report.at_most("verify per recorded op, forward and backward", 60,
                 (turns.ns(c) - turns.ns(d)) / ops(grad), "ns",
                 fmt::format("{} ops of {} forward, call {:.0f} ns, frozen {:.0f} ns", ops(grad),
                             chain_ops + 1, turns.ns(c), turns.ns(d)));
  for (const ChainStep* s : {&plain, &plain_frozen, &grad, &grad_frozen}) {
    check_replays(report, "verify", s->step.stats());
  }
}

void count_calls(Report& report, const std::string& what, const std::function<void()>& call) {
  constexpr int calls = 1000;
  for (int k = 0; k < 200; ++k) call();
  if (counts_heap_calls) {
    const std::uint64_t before = heap_calls;
    for (int k = 0; k < calls; ++k) call();
    report.at_most("heap allocations per call, " + what, 0,
                   static_cast<double>(heap_calls - before) / calls, "");
  }
  const auto probe = probe_system_calls(
      [&] {
        for (int k = 0; k < 20; ++k) call();
      },
      [&] {
        for (int k = 0; k < calls; ++k) call();
      });
  if (!probe.possible) return report.show("system calls, " + what, NAN, "", "no filter here");
  report.at_most(fmt::format("system calls in {} calls, {}", calls, what), 0, probe.first >= 0, "",
                 probe.first >= 0 ? fmt::format("the first has number {}", probe.first) : "");
}

void replay(Report& report) {
  ChainStep one([](const Tensor& x) { return x * 2.0; }, Way::Frozen);
  ChainStep six(tiny_training_fn(), Way::Frozen);
  Turns turns;
  const int a = turns.add([&](std::int64_t n) { one.run(n); });
  const int b = turns.add([&](std::int64_t n) { six.run(n); });
  turns.measure(25);
  const auto s = six.step.stats();
  report.show("frozen call, one kernel of 16 elements", turns.ns(a), "ns");
  report.at_most("frozen call, six tiny parameters with SGD, kernels included", 500, turns.ns(b),
                 "ns", fmt::format("{} kernels", s.kernels_per_replay));
  ChainStep few(tiny_training_fn(100), Way::Graph), many(tiny_training_fn(2000), Way::Graph);
  Turns grow;
  const int c = grow.add([&](std::int64_t n) { few.run(n); });
  const int d = grow.add([&](std::int64_t n) { many.run(n); });
  grow.measure(9);
  report.at_most("a parameter of 2,000 in a replay, over one of 100", 2,
                 grow.ns(d) / 20 / grow.ns(c), "x",
                 fmt::format("{:.0f} and {:.0f} us a call", grow.ns(d) / 1e3, grow.ns(c) / 1e3));
  ChainStep verified(tiny_training_fn(), Way::Graph);
  count_calls(report, "tiny step frozen", [&] { six.run(1); });
  count_calls(report, "tiny step verified", [&] { verified.run(1); });
  for (const ChainStep* step : {&one, &six, &few, &many, &verified}) {
    check_replays(report, "replay", step->step.stats());
  }
  for (const char* optimizer : {"sgd", "adamw"}) {
    for (const Way way : {Way::Frozen, Way::Graph}) {
      BrrrMlp mlp(optimizer, 32, way);
      mlp.run(8);
      const std::string name =
          fmt::format("MLP {} {}", optimizer, way == Way::Frozen ? "frozen" : "verified");
      const auto kernels = static_cast<double>(mlp.stats().kernels_per_replay);
      report.at_most(name + ", kernels of a step", 16, kernels, "");
      count_calls(report, name, [&] { mlp.run(1); });
      check_replays(report, name, mlp.stats());
    }
  }
}

// --- the MLP -----------------------------------------------------------------------------------

void mlp(Report& report, json& table) {
  std::string lines = fmt::format("\n{:<7}{:>6}{:>10}{:>10}{:>10}{:>10}{:>10}  {}\n", "MLP",
                                  "batch", "floor us", "eager", "graph", "frozen", "libtorch",
                                  "to floor: eager graph frozen; libtorch / graph");
  for (const std::string optimizer : {"sgd", "adamw"}) {
    for (const std::int64_t batch : {1, 8, 32, 128, 512, 1024}) {
      check_agreement(report, optimizer, batch);
      const MlpFigures m = measure_mlp(optimizer, batch, batch == 32 ? 45 : 15);
      const double to_torch = m.torch_us / m.us[1];
      lines += fmt::format(
          "{:<7}{:>6}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}  "
          "{:.3f} {:.3f} {:.3f}; {:.2f}\n",
          optimizer, batch, m.floor_us, m.us[0], m.us[1], m.us[2], m.torch_us, m.to_floor[0],
          m.to_floor[1], m.to_floor[2], to_torch);
      table.push_back({{"optimizer", optimizer},
                       {"batch", batch},
                       {"floor_us", m.floor_us},
                       {"eager_us", m.us[0]},
                       {"graph_us", m.us[1]},
                       {"frozen_us", m.us[2]},
                       {"libtorch_us", m.torch_us},
                       {"eager_to_floor", m.to_floor[0]},
                       {"graph_to_floor", m.to_floor[1]},
                       {"frozen_to_floor", m.to_floor[2]}});
      const std::string at = fmt::format("MLP batch {}, {}, ", batch, optimizer);
      report.at_least(at + "graph over eager", 1, m.over_eager, "x");
      if (batch >= 32) report_limit(report, at, m.us[1], m.limit);
      if (batch != 32) continue;
      const std::string name = fmt::format("MLP batch 32, {}", optimizer);
      const auto us = [&](double t) {
        return fmt::format("{:.1f} us, floor {:.1f} us", t, m.floor_us);
      };
      report.at_most(name + ", graph to floor", 1.15, m.to_floor[1], "x", us(m.us[1]));
      report.at_most(name + ", eager to floor", 1.35, m.to_floor[0], "x", us(m.us[0]));
      report.show(name + ", frozen to floor", m.to_floor[2], "x", us(m.us[2]));
      if (m.torch_us > 0) {
        report.at_least(name + ", graph against libtorch", optimizer == "sgd" ? 1.9 : 5.5, to_torch,
                        "x", fmt::format("libtorch {:.1f} us", m.torch_us));
      }
    }
  }
  fmt::print("{}\n", lines);
}

// --- fusion ------------------------------------------------------------------------------------

constexpr std::int64_t side = 4096;  // float32: 64 MB
static_assert(side * side * sizeof(float) == FromMemory::bytes);

void chain(Report& report, const Tensor& x) {
  auto one = brrr::step([](const Tensor& x) { return x.cos(); });
  auto two = brrr::step([](const Tensor& x) { return x.cos().cos(); });
  auto two_small = brrr::step([](const Tensor& x) { return x.cos().cos(); });
  const Tensor small = brrr::randn({side * side / 512}), smaller = brrr::randn({small.numel() / 8});
  std::vector<double> ratio;
  double two_ms = 0, arithmetic_ms = 0;
  for (int r = 0; r < 7; ++r) {
    Turns turns;
    const int i = turns.each([&] { one(x); });
    const int j = turns.each([&] { two(x); });
    const int l = turns.each([&] { two_small(small); });
    const int m = turns.each([&] { two_small(smaller); });
    turns.measure(3, 20);
    // Operands in L2 do not wait for memory, so the difference of two sizes is pure arithmetic: the
    // cost of a call, which both have, cancels.
    const double arithmetic = (turns.ns(l) - turns.ns(m)) * static_cast<double>(side * side) /
                              static_cast<double>(small.numel() - smaller.numel());
    arithmetic_ms = arithmetic / 1e6;
    ratio.push_back(turns.ns(j) / std::max(turns.ns(i), arithmetic));
    two_ms = turns.ns(j) / 1e6;
  }
  report.at_most("cos(cos(x)) fused, 64 MB, to the longer of one cos and its arithmetic", 1.1,
                 median(ratio), "x",
                 fmt::format("{:.2f} ms, arithmetic {:.2f} ms", two_ms, arithmetic_ms));
  for (const auto& s : {one.stats(), two.stats(), two_small.stats()}) {
    check_replays(report, "fusion", s);
  }
}

void fusion(Report& report) {
  const GeluChain c(side, side), narrow(side * side / 1024, 1024);
  const Tensor w = brrr::randn({side, side}), b = brrr::randn({side, side});
  auto gelu = brrr::step(GeluChain::Fn(GeluChain::apply));
  auto gelu_narrow = brrr::step(GeluChain::Fn(GeluChain::apply));
  const FromMemory memory;
  std::vector<double> rows, narrow_rows, full;
  for (int r = 0; r < FromMemory::rounds; ++r) {
    const auto figure = [&](std::vector<double>& all, int reads, auto call) {
      all.push_back(100 * memory.streams_us(reads) / memory.kernel_us("gelu", call));
    };
    figure(narrow_rows, 2, [&] { gelu_narrow(narrow.x, narrow.w, narrow.b, narrow.residual); });
    figure(rows, 2, [&] { gelu(c.x, c.w, c.b, c.residual); });
    figure(full, 4, [&] { gelu(c.x, w, b, c.residual); });
  }
  const char* const what = "gelu(x*w+b)+residual, 64 MB, of the speed of its streams";
  report.at_least(what, 90, median(narrow_rows), "%", "w, b rows of 1024");
  report.at_least("the same, w and b rows of 4096", 90, median(rows), "%");
  report.at_least("the same, w and b 64 MB too", 90, median(full), "%");
  for (const auto& s : {gelu.stats(), gelu_narrow.stats()}) check_replays(report, "fusion", s);
  chain(report, c.x);
}

// --- memory and building -----------------------------------------------------------------------

void memory(Report& report) {
  for (const char* optimizer : {"sgd", "adamw"}) {
    report_memory(report, fmt::format("MLP batch 32, {}, ", optimizer),
                  [&](Way way) { return std::make_unique<BrrrMlp>(optimizer, 32, way); });
  }
}

double first_replay_ms(const std::string& optimizer) {
  BrrrMlp mlp(optimizer, 32, Way::Graph, {.require_graph = true});
  const auto start = Clock::now();
  mlp.run(2);  // the first call records and walks, the second builds and replays
  return ns_since(start) / 1e6;
}

// In separate processes: within one, equal kernels are built only once.
void build(Report& report) {
  for (const char* optimizer : {"sgd", "adamw"}) {
    std::array<std::vector<double>, 2> ms;
    for (int r = 0; r < 5; ++r) {
      const TemporaryFolder folder;
      for (auto& side : ms) {
        const auto lines =
            run_child(fmt::format("BRRR_CACHE_DIR='{}' '{}' --first-replay {}",
                                  folder.path.string(), own_path().string(), optimizer));
        if (!lines.empty()) side.push_back(std::stod(lines[0]));
      }
    }
    const std::string name = fmt::format("MLP {}, record to first compiled replay, ", optimizer);
    if (ms[0].empty() || ms[1].empty()) return report.wrong(name + "failed");
    report.at_most(name + "cold cache", 600, median(ms[0]), "ms");
    report.at_most(name + "warm cache", 30, median(ms[1]), "ms");
  }
}

// --- the program -------------------------------------------------------------------------------

// The exit status of a run that does nothing else.
int replayed(const brrr::StepStats& stats) {
  if (stats.fallbacks == 0) return 0;
  std::fprintf(stderr, "bench_ratios: a replay fell back: %s\n", stats.last_fallback.c_str());
  return 2;
}

int run_for_callgrind(const std::string& what, std::int64_t n) {
  if (what == "add" || what == "add_grad") {
    const auto [a, b] = add_operands(what == "add_grad");
    adds(n, a, b);
  } else if (what == "verify" || what == "verify_grad") {
    ChainStep s(chain_fn(what == "verify_grad"), Way::Graph);
    s.run(n);
    std::printf("%d ops per call\n", static_cast<int>(s.step.stats().ops_per_replay));
    return replayed(s.step.stats());
  } else if (what == "frozen") {
    ChainStep s(tiny_training_fn(), Way::Frozen);
    s.run(n);
    return replayed(s.step.stats());
  } else {
    throw std::invalid_argument("--instr: '" + what +
                                "' is none of add, add_grad, verify, verify_grad, frozen");
  }
  return 0;
}

struct Options : RunOptions {
  std::string only, json, instr, first_replay, scale, mode;
  std::int64_t count = 0;

  bool take(Words& words) {
    if (words.take("--instr", instr)) {
      count = positive_number("--instr " + instr, words.value());
    } else if (words.take("--scale", scale)) {
      mode = words.value();
    } else {
      return RunOptions::take(words) || words.take("--only", only) || words.take("--json", json) ||
             words.take("--first-replay", first_replay);
    }
    return true;
  }
};

int run_parts(const Options& o) {
  const Machine machine = start_run(o);
  Report report;
  json table = json::array();
  const std::vector<std::pair<std::string, std::function<void()>>> parts = {
      {"dispatch", [&] { dispatch(report); }}, {"verify", [&] { verify(report); }},
      {"replay", [&] { replay(report); }},     {"fusion", [&] { fusion(report); }},
      {"rows", [&] { rows_part(report); }},    {"memory", [&] { memory(report); }},
      {"build", [&] { build(report); }},       {"mlp", [&] { mlp(report, table); }},
      {"gpt", [&] { gpt_part(report); }},      {"scale", [&] { scale_part(report, o.threads); }}};
  const auto named = [&](const auto& part) { return o.only.empty() || part.first == o.only; };
  if (std::none_of(parts.begin(), parts.end(), named)) {
    throw std::invalid_argument("--only: there is no part '" + o.only + "', see --help");
  }
  fmt::print("\n{:<62} {:>13} {:>10}\n", "figure", "bar", "measured");
  for (const auto& part : parts) {
    if (named(part)) part.second();
  }
  if (!o.json.empty()) {
    json all = report.to_json();
    all["machine"] = machine.line;
    all["versions"] = machine.versions;
    all["mlp"] = std::move(table);
    std::ofstream file(o.json);
    file << all.dump(2) << '\n';
    if (!file.flush()) throw std::runtime_error("--json: cannot write " + o.json);
  }
  return report.right() ? 0 : 2;
}

int run(const Options& o) {
  if (o.instr.empty() && o.first_replay.empty() && o.scale.empty()) return run_parts(o);
  brrr::cpu::set_num_threads(o.instr.empty() ? o.threads : 1);
  if (!o.instr.empty()) return run_for_callgrind(o.instr, o.count);
  if (!o.scale.empty()) return print_scale(o.scale, o.mode);
  std::printf("%.3f\n", first_replay_ms(o.first_replay));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options o;
    return read_words(argc, argv, help, o) ? run(o) : 0;
  } catch (const std::exception& e) {
    status_of("bench_ratios", e);
    return 1;  // 2 is reserved for modes that disagree.
  }
}
