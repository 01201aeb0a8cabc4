// Each figure alone, with Google Benchmark's options (--benchmark_filter, --benchmark_out, ...);
// bench_ratios compares them interleaved. Covers the cost of an op with next to nothing to compute,
// chains of pointwise ops against a copy of the same streams, the MLP's training step.

#include <benchmark/benchmark.h>

#include "tests/bench/bench.h"
#include "tests/bench/tiny_steps.h"

namespace {

using namespace brrr::bench;
using brrr::Tensor;

bool a_step_fell_back = false;

// A step that fell back measured the reference walker, which is an error of the program, too.
void check_fallbacks(benchmark::State& state, const brrr::StepStats& stats) {
  if (stats.fallbacks == 0) return;
  a_step_fell_back = true;
  state.SkipWithError(("fallback: " + stats.last_fallback).c_str());
}

// --- ops and chains of them: eager, recorded, frozen; times of chains are per op -----------------

void per_op(benchmark::State& state, std::int64_t ops) {
  state.SetItemsProcessed(state.iterations() * ops);
  state.counters["per_op"] =
      benchmark::Counter(static_cast<double>(state.iterations() * ops),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

template <class F> void time_op(benchmark::State& state, const F& op) {
  for (auto _ : state) benchmark::DoNotOptimize(op());
  per_op(state, 1);
}

void add(benchmark::State& state, bool gradient) {
  const auto operand = [&] { return brrr::ones({state.range(0)}).set_requires_grad(gradient); };
  time_op(state, [a = operand(), b = operand()] { return a + b; });
}
BENCHMARK_CAPTURE(add, plain, false)->Arg(1)->Arg(64)->Arg(1024);
BENCHMARK_CAPTURE(add, with_gradient, true)->Arg(1)->Arg(64)->Arg(1024);

void add_scalar(benchmark::State& state) {
  time_op(state, [a = brrr::ones({1})] { return a + 1.0; });
}
BENCHMARK(add_scalar);

void add_broadcast(benchmark::State& state) {
  time_op(state, [a = brrr::ones({4, 1}), b = brrr::ones({4})] { return a + b; });
}
BENCHMARK(add_broadcast);

void add_in_place(benchmark::State& state) {
  const Tensor a = brrr::zeros({1}), b = brrr::ones({1});
  for (auto _ : state) a.add_(b);
  per_op(state, 1);
}
BENCHMARK(add_in_place);

void view(benchmark::State& state) {
  time_op(state, [a = brrr::ones({4, 4})] { return a.transpose(0, 1); });
}
BENCHMARK(view);

void run_chain(benchmark::State& state, bool gradient, Way way) {
  ChainStep s(chain_fn(gradient), way);
  for (auto _ : state) s.run(1);
  check_fallbacks(state, s.step.stats());
  const auto recorded = static_cast<std::int64_t>(s.step.stats().ops_per_replay);
  per_op(state, recorded > 0 ? recorded : chain_ops);
}

void chain(benchmark::State& state, Way way) { run_chain(state, false, way); }
BENCHMARK_CAPTURE(chain, eager, Way::Eager);
BENCHMARK_CAPTURE(chain, graph, Way::Graph);
BENCHMARK_CAPTURE(chain, frozen, Way::Frozen);

void chain_with_gradient(benchmark::State& state, Way way) { run_chain(state, true, way); }
BENCHMARK_CAPTURE(chain_with_gradient, eager, Way::Eager);
BENCHMARK_CAPTURE(chain_with_gradient, graph, Way::Graph);
BENCHMARK_CAPTURE(chain_with_gradient, frozen, Way::Frozen);

// --- fusion: eager, recorded without and with it -------------------------------------------------

void set_bytes(benchmark::State& state, int reads) {
  state.SetBytesProcessed(state.iterations() * state.range(0) * (reads + 1) << 20);
}

// The time of reading n arrays and writing one without computing anything.
void copy_streams(benchmark::State& state, int reads) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  for (auto _ : state) state.SetIterationTime(brrr::cpu::stream_like(reads, bytes).seconds);
  set_bytes(state, reads);
}

// fn(x), which reads x and `reads` - 1 more streams of its size.
void run_fused(benchmark::State& state, Way way, int reads, const Tensor& x, ChainFn fn) {
  ChainStep s(std::move(fn), way, x);
  for (auto _ : state) s.run(1);
  set_bytes(state, reads);
  check_fallbacks(state, s.step.stats());
}

// In rows of 4 KB.
GeluChain chain_of(const benchmark::State& state) { return {state.range(0) * 256, 1024}; }

void gelu_chain(benchmark::State& state, Way way) {
  const GeluChain c = chain_of(state);
  run_fused(state, way, 2, c.x,
            [&](const Tensor& x) { return GeluChain::apply(x, c.w, c.b, c.residual); });
}
void one_cos(benchmark::State& state, Way way) {
  run_fused(state, way, 1, chain_of(state).x, [](const Tensor& x) { return x.cos(); });
}
void two_cos(benchmark::State& state, Way way) {
  run_fused(state, way, 1, chain_of(state).x, [](const Tensor& x) { return x.cos().cos(); });
}

void all_sizes(benchmark::internal::Benchmark* b) {
  b->ArgName("MB")->Unit(benchmark::kMicrosecond)->Arg(1)->Arg(16)->Arg(64);
}
void sizes(benchmark::internal::Benchmark* b) {
  all_sizes(b);
  b->MinTime(0.2);
}
void copy_sizes(benchmark::internal::Benchmark* b) {
  all_sizes(b);
  b->UseManualTime()->Iterations(3);
}

BENCHMARK_CAPTURE(copy_streams, two_reads, 2)->Apply(copy_sizes);
BENCHMARK_CAPTURE(gelu_chain, eager, Way::Eager)->Apply(sizes);
BENCHMARK_CAPTURE(gelu_chain, graph_unfused, Way::Unfused)->Apply(sizes);
BENCHMARK_CAPTURE(gelu_chain, graph, Way::Graph)->Apply(sizes);
BENCHMARK_CAPTURE(copy_streams, one_read, 1)->Apply(copy_sizes);
BENCHMARK_CAPTURE(one_cos, eager, Way::Eager)->Apply(sizes);
BENCHMARK_CAPTURE(one_cos, graph, Way::Graph)->Apply(sizes);
BENCHMARK_CAPTURE(two_cos, eager, Way::Eager)->Apply(sizes);
BENCHMARK_CAPTURE(two_cos, graph, Way::Graph)->Apply(sizes);

// --- the MLP 784-256-128-10: by hand, eager, recorded without and with fusion, frozen ------------

const char* optimizer(const benchmark::State& state) {
  return state.range(1) == 0 ? "sgd" : "adamw";
}

template <class Run> void time_steps(benchmark::State& state, Run& mlp) {
  mlp.run(20);
  for (auto _ : state) mlp.run(1);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void floor_step(benchmark::State& state) {
  FloorRun mlp(optimizer(state), state.range(0));
  time_steps(state, mlp);
}

void brrr_step(benchmark::State& state, Way way) {
  BrrrMlp mlp(optimizer(state), state.range(0), way);
  time_steps(state, mlp);
  const brrr::StepStats s = mlp.stats();
  check_fallbacks(state, s);
  state.counters["kernels"] = static_cast<double>(s.kernels_per_replay);
  state.counters["arena_bytes"] = static_cast<double>(s.arena_bytes);
}

void batches(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "adamw"})->Unit(benchmark::kMicrosecond)->MinWarmUpTime(0.05);
  b->ArgsProduct({{1, 8, 32, 128, 512, 1024}, {0, 1}});
}

BENCHMARK(floor_step)->Apply(batches);
BENCHMARK_CAPTURE(brrr_step, eager, Way::Eager)->Apply(batches);
BENCHMARK_CAPTURE(brrr_step, graph_unfused, Way::Unfused)->Apply(batches);
BENCHMARK_CAPTURE(brrr_step, graph, Way::Graph)->Apply(batches);
BENCHMARK_CAPTURE(brrr_step, frozen, Way::Frozen)->Apply(batches);

}  // namespace

int main(int argc, char** argv) {
  try {
    if (std::find(argv, argv + argc, std::string("--help")) != argv + argc) {
      std::puts("bench_micro [--threads N] [--cpu N], 1 and the last one if not given, and\n");
    }
    benchmark::Initialize(&argc, argv);  // Removes its own options.
    RunOptions o;
    for (Words words(argc, argv, /*all=*/true); words.next();) {
      if (!o.take(words)) words.unknown();
    }
    const Machine m = start_run(o);
    benchmark::AddCustomContext("machine", m.line);
    benchmark::AddCustomContext("versions", m.versions);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    if (a_step_fell_back) throw std::runtime_error("do not use these figures: a step fell back");
    return 0;
  } catch (const std::exception& e) {
    return status_of("bench_micro", e);
  }
}
