// What an op costs when there is next to nothing to compute: eager with and without a gradient,
// recorded, replayed, frozen. Times of chains are per op.

#include "tests/bench/bench.h"
#include "tests/bench/tiny_steps.h"

namespace {

using namespace brrr::bench;
using brrr::Tensor;

void per_op(benchmark::State& state, std::int64_t ops) {
  state.SetItemsProcessed(state.iterations() * ops);
  state.counters["per_op"] =
      benchmark::Counter(static_cast<double>(state.iterations() * ops),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void add(benchmark::State& state, bool gradient) {
  const Tensor a = brrr::ones({state.range(0)}), b = brrr::ones({state.range(0)});
  a.set_requires_grad(gradient);
  b.set_requires_grad(gradient);
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
  per_op(state, 1);
}
BENCHMARK_CAPTURE(add, plain, false)->Arg(1)->Arg(64)->Arg(1024);
BENCHMARK_CAPTURE(add, with_gradient, true)->Arg(1)->Arg(64)->Arg(1024);

void add_scalar(benchmark::State& state) {
  const Tensor a = brrr::ones({1});
  for (auto _ : state) benchmark::DoNotOptimize(a + 1.0);
  per_op(state, 1);
}
BENCHMARK(add_scalar);

void add_broadcast(benchmark::State& state) {
  const Tensor a = brrr::ones({4, 1}), b = brrr::ones({4});
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
  per_op(state, 1);
}
BENCHMARK(add_broadcast);

void add_in_place(benchmark::State& state) {
  const Tensor a = brrr::zeros({1}), b = brrr::ones({1});
  for (auto _ : state) a.add_(b);
  per_op(state, 1);
}
BENCHMARK(add_in_place);

void view(benchmark::State& state) {
  const Tensor a = brrr::ones({4, 4});
  for (auto _ : state) benchmark::DoNotOptimize(a.transpose(0, 1));
  per_op(state, 1);
}
BENCHMARK(view);

template <class S, class... A>
void run_chain(benchmark::State& state, S step, bool freeze, const A&... args) {
  for (int k = 0; k < 4; ++k) step(args...);
  if (freeze) step.freeze();
  for (auto _ : state) benchmark::DoNotOptimize(step(args...));
  check_fallbacks(state, step.stats());
  const auto recorded = static_cast<std::int64_t>(step.stats().ops_per_replay);
  per_op(state, recorded > 0 ? recorded : chain_ops);
}

void chain(benchmark::State& state, Way way) {
  const auto mode = way == Way::Eager ? brrr::Mode::Eager : brrr::Mode::Graph;
  run_chain(state, brrr::step([](const Tensor& x) { return tiny_chain(x, chain_ops); }, mode),
            way == Way::Frozen, brrr::ones({16}));
}
BENCHMARK_CAPTURE(chain, eager, Way::Eager);
BENCHMARK_CAPTURE(chain, graph, Way::Graph);
BENCHMARK_CAPTURE(chain, frozen, Way::Frozen);

void chain_with_gradient(benchmark::State& state, Way way) {
  const auto mode = way == Way::Eager ? brrr::Mode::Eager : brrr::Mode::Graph;
  const Tensor w = brrr::ones({16});
  w.set_requires_grad();
  const auto fn = [w](const Tensor& x) { return tiny_chain_with_gradient(x, w, chain_ops); };
  run_chain(state, brrr::step(fn, mode), way == Way::Frozen, brrr::ones({16}));
}
BENCHMARK_CAPTURE(chain_with_gradient, eager, Way::Eager);
BENCHMARK_CAPTURE(chain_with_gradient, graph, Way::Graph);
BENCHMARK_CAPTURE(chain_with_gradient, frozen, Way::Frozen);

}  // namespace

int main(int argc, char** argv) { return google_benchmark_main(argc, argv); }
