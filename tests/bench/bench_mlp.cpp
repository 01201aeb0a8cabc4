// The training step of the MLP 784-256-128-10: by hand, eager, recorded without and with fusion,
// frozen. bench_ratios compares them in turns; here each stands alone, with Google Benchmark's
// options (--benchmark_filter, --benchmark_out, ...).

#include "tests/bench/bench.h"

namespace {

using namespace brrr::bench;

const char* optimizer(const benchmark::State& state) {
  return state.range(1) == 0 ? "sgd" : "adamw";
}

void floor_step(benchmark::State& state) {
  FloorRun mlp(optimizer(state), state.range(0));
  mlp.run(20);
  for (auto _ : state) mlp.run(1);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void brrr_step(benchmark::State& state, Way way) {
  BrrrMlp mlp(optimizer(state), state.range(0), way);
  mlp.run(20);
  for (auto _ : state) mlp.run(1);
  state.SetItemsProcessed(state.iterations() * state.range(0));
  const brrr::StepStats s = mlp.stats();
  check_fallbacks(state, s);
  state.counters["kernels"] = static_cast<double>(s.kernels_per_replay);
  state.counters["arena_bytes"] = static_cast<double>(s.arena_bytes);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "adamw"})->Unit(benchmark::kMicrosecond)->MinWarmUpTime(0.05);
  for (int adamw : {0, 1}) {
    for (int batch : {1, 8, 32, 128, 512, 1024}) b->Args({batch, adamw});
  }
}

BENCHMARK(floor_step)->Apply(sizes);
BENCHMARK_CAPTURE(brrr_step, eager, Way::Eager)->Apply(sizes);
BENCHMARK_CAPTURE(brrr_step, graph_unfused, Way::Unfused)->Apply(sizes);
BENCHMARK_CAPTURE(brrr_step, graph, Way::Graph)->Apply(sizes);
BENCHMARK_CAPTURE(brrr_step, frozen, Way::Frozen)->Apply(sizes);

}  // namespace

int main(int argc, char** argv) { return google_benchmark_main(argc, argv); }
