// brrr's part of `./brrr bench --peers`: training steps on the CPU, eagerly and as a graph, from
// the weights and batches that its peers read. peers.py runs it and its peers in turns.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include "backends/cpu/pool.h"
#include "tests/bench/figures.h"
#include "tests/bench/measure/clock.h"
#include "tests/bench/measure/exchange.h"
#include "tests/bench/measure/machine.h"
#include "tests/bench/steps.h"

namespace {

using namespace brrr;
using bench::StepMode, bench::StepTask;

constexpr StepMode kModes[] = {{"", Mode::Eager, false}, {", graph", Mode::Graph, false}};

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

// All modes start from the same weights and must have bit-identical losses.
void measure(const StepTask& task, const bench::StepsOptions& o, bench::Figures& figures) {
  std::vector<float> eager;
  for (const StepMode& mode : kModes) {
    const std::string name = task.name + mode.suffix;
    figures.attempt(name, [&] {
      bench::StepRun run(task, mode, kCPU);
      figures.note_losses(name, run.losses());
      if (mode.mode == Mode::Eager) eager = run.losses();
      if (run.losses() != eager) throw Error("the losses are not those of the eager mode");
      const dist::Stats before = dist::stats();
      const bench::Timed t = bench::timed(run, o.seconds, bench::first_ranks_clock);
      if (run.stats().fallbacks > 0) throw Error("fell back: " + run.stats().last_fallback);
      figures.note(name, t.seconds * 1e6, "us");
      figures.note(name + ", cores", t.cores, "");
      if (dist::size() > 1) bench::note_exchange(figures, name, before, run.steps());
    });
  }
}

int run(bench::StepsOptions o) {
  dist::init();  // ranks.py starts several processes.
  if (dist::rank() > 0) {
    o.json = o.inputs = "";
    if (!std::freopen("/dev/null", "w", stdout)) return 1;
  }
  cpu::set_num_threads(o.threads);
  const std::vector<StepTask> all = tasks();
  std::string names;
  for (const StepTask& task : all) names += "\n  " + task.name;
  if (!o.only.empty() && (names + "\n").find("\n  " + o.only + "\n") == names.npos) {
    throw bench::UsageError(
        fmt::format("--only: there is no step '{}'; the steps are{}", o.only, names));
  }
  if (!o.inputs.empty()) save(o.inputs, bench::inputs_of(all));
  if (o.json.empty() && !o.inputs.empty() && dist::size() == 1) return 0;
  const bench::BlasInfo blas = bench::blas_info();
  if (!blas.warning.empty()) fmt::print("*** {}\n", blas.warning);
  bench::Figures figures(
      o.json,
      {{"brrr", bench::versions()}, {"clock", bench::cpu_clock()}, {"warning", blas.warning}});
  for (const StepTask& task : all) {
    if (o.only.empty() || task.name == o.only) measure(task, o, figures);
  }
  return figures.failed() ? 1 : 0;
}

constexpr const char* kHelp =
    R"(usage: bench_steps [--only STEP] [--threads N] [--seconds S] [--json FILE] [--inputs FILE]
  --only     the step of that name
  --threads  1 if not given
  --seconds  at least, for each figure; 0.5 if not given
  --json     write the figures, after each of them
  --inputs   first write the steps' weights and batches (safetensors), for the peers;
             without --json nothing else is done
Exit status: 0, 1 after an error or if a figure failed, 2 if the command line is wrong.
)";

}  // namespace

int main(int argc, char** argv) {
  try {
    bench::StepsOptions o;
    return bench::read_words(argc, argv, kHelp, o) ? run(o) : 0;
  } catch (const std::exception& e) {
    if (dist::size() > 1) dist::abort(e.what());
    return bench::status_of("bench_steps", e);
  }
}
