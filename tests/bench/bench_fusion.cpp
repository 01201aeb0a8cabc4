// Chains of pointwise ops beside the same streams copied: eager, recorded without and with fusion.

#include "tests/bench/bench.h"

namespace {

using namespace brrr::bench;
using brrr::Tensor;

constexpr std::int64_t columns = 1024;
std::int64_t rows(const benchmark::State& state) { return state.range(0) * 256; }  // of 4 KB

// What reading n arrays and writing one takes when nothing is computed.
void copy_streams(benchmark::State& state, int reads) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  for (auto _ : state) state.SetIterationTime(brrr::cpu::stream_like(reads, bytes).seconds);
  state.SetBytesProcessed(state.iterations() * state.range(0) * (reads + 1) << 20);
}

template <class F> void run_step(benchmark::State& state, F f, Way way, int reads) {
  const GeluChain c(rows(state), columns);
  brrr::StepOptions o;
  o.mode = way == Way::Eager ? brrr::Mode::Eager : brrr::Mode::Graph;
  o.fuse = way != Way::Unfused;
  auto step = brrr::step([&](const Tensor& x) { return f(c, x); }, o);
  for (int k = 0; k < 4; ++k) step(c.x);
  for (auto _ : state) benchmark::DoNotOptimize(step(c.x));
  state.SetBytesProcessed(state.iterations() * state.range(0) * (reads + 1) << 20);
  check_fallbacks(state, step.stats());
}

void gelu_chain(benchmark::State& state, Way way) {
  run_step(
      state,
      [](const GeluChain& c, const Tensor& x) { return GeluChain::apply(x, c.w, c.b, c.residual); },
      way, 2);
}
void one_cos(benchmark::State& state, Way way) {
  run_step(
      state, [](const GeluChain&, const Tensor& x) { return x.cos(); }, way, 1);
}
void two_cos(benchmark::State& state, Way way) {
  run_step(
      state, [](const GeluChain&, const Tensor& x) { return x.cos().cos(); }, way, 1);
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

}  // namespace

int main(int argc, char** argv) { return google_benchmark_main(argc, argv); }
