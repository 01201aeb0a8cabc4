// brrr's part of `./brrr bench --peers`: training steps on the CPU, eagerly and as a graph, from
// weights and batches that PyTorch and JAX start from too. peers.py runs it and its peers in turns.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "backends/cpu/pool.h"
#include "tests/bench/figures.h"
#include "tests/bench/measure/machine.h"
#include "tests/bench/peer.h"
#include "tests/bench/steps.h"

namespace {

using namespace brrr;
using bench::Clock, bench::StepMode, bench::StepTask, bench::median, bench::seconds_since;

constexpr StepMode kModes[] = {{"", Mode::Eager, false}, {", graph", Mode::Graph, false}};

// As in peer_inputs.py, which says why: samples of about a fiftieth of a second, at most so many
// steps from the first weights, and no fewer samples.
constexpr double kSampleSeconds = 0.02;
constexpr int64_t kMostSteps = 100;
constexpr size_t kFewestSamples = 5;

struct Options {
  std::string json, inputs, only;
  int threads = 1;
  double seconds = 0.5;
};

std::vector<StepTask> tasks() {
  manual_seed(7);
  std::vector<StepTask> all;
  for (int64_t batch : {1, 8, 32, 256}) all.push_back(bench::mlp_task(batch));
  const models::GPTOptions small{.vocab = 65, .block = 32, .layers = 2, .heads = 4, .width = 64};
  const models::GPTOptions large{.vocab = 65, .block = 64, .layers = 4, .heads = 4, .width = 128};
  for (int64_t batch : {1, 8, 64}) all.push_back(bench::gpt_task(small, batch));
  all.push_back(bench::gpt_task(large, 12));
  return all;
}

struct Timed {
  double seconds = 0;  // Of a step: the median of the samples.
  double cores = 0;    // CPU time to time: how many cores were at work.
};

Timed timed(bench::StepRun& run, double enough) {
  const auto sample = [&](int64_t n) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < n; ++i) run.step();
    return seconds_since(start);
  };
  run.reset();
  for (int i = 0; i < 3; ++i) run.step();
  const double fastest = std::min(sample(1), sample(3) / 3);
  const auto n = std::clamp(static_cast<int64_t>(kSampleSeconds / fastest), int64_t{1}, kMostSteps);
  std::vector<double> all;
  double spent = 0, busy = 0;
  while (spent < enough || all.size() < kFewestSamples) {
    run.reset();
    for (int i = 0; i < 3; ++i) run.step();
    const std::clock_t before = std::clock();
    const double seconds = sample(n);
    busy += static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    spent += seconds;
    all.push_back(seconds / static_cast<double>(n));
  }
  return {median(all), busy / spent};
}

// The modes start from the same weights and lose, to the last bit, the same.
void measure(const StepTask& task, const Options& o, bench::Figures& figures) {
  std::vector<float> eager;
  for (const StepMode& mode : kModes) {
    const std::string name = task.name + mode.suffix;
    figures.attempt(name, [&] {
      bench::StepRun run(task, mode, kCPU);
      figures.note_losses(name, run.losses());
      if (mode.mode == Mode::Eager) eager = run.losses();
      if (run.losses() != eager) throw Error("the losses are not those of the eager mode");
      const Timed t = timed(run, o.seconds);
      if (run.stats().fallbacks > 0) throw Error("fell back: " + run.stats().last_fallback);
      figures.note(name, t.seconds * 1e6, "us");
      figures.note(name + ", cores", t.cores, "");
    });
  }
}

int run(const Options& o) {
  cpu::set_num_threads(o.threads);
  const std::vector<StepTask> all = tasks();
  if (!o.inputs.empty()) save(o.inputs, bench::inputs_of(all));
  if (o.json.empty() && !o.inputs.empty()) return 0;
  const bench::BlasInfo blas = bench::blas_info();
  if (!blas.warning.empty()) fmt::print("*** {}\n", blas.warning);
  bench::Figures figures(o.json, {{"brrr", bench::versions()}, {"warning", blas.warning}});
  for (const StepTask& task : all) {
    if (o.only.empty() || task.name == o.only) measure(task, o, figures);
  }
  return figures.failed() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options o;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--help") {
        fmt::print(
            "usage: bench_steps [--only STEP] [--threads N] [--seconds S] [--json FILE] "
            "[--inputs FILE]\n"
            "  --only     the step of that name\n"
            "  --threads  1 if not given\n"
            "  --seconds  at least, for each figure; 0.5 if not given\n"
            "  --json     write the figures, after each of them\n"
            "  --inputs   first write the steps' weights and batches (safetensors), for the "
            "peers;\n"
            "             without --json nothing else is done\n");
        return 0;
      }
      // Google Benchmark's options, which ./brrr bench hands to all, mean nothing here.
      if (i + 1 == argc) break;
      if (word == "--only") {
        o.only = argv[++i];
      } else if (word == "--json") {
        o.json = argv[++i];
      } else if (word == "--inputs") {
        o.inputs = argv[++i];
      } else if (word == "--threads") {
        o.threads = static_cast<int>(bench::positive_number(word, argv[++i]));
      } else if (word == "--seconds") {
        o.seconds = std::atof(argv[++i]);
      }
    }
    return run(o);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_steps: {}\n", e.what());
    return 1;
  }
}
