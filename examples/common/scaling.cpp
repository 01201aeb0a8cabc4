#include "examples/common/scaling.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "core/check.h"
#include "examples/common/training.h"
#include "tests/bench/measure/exchange.h"
#include "tests/bench/report.h"
#include "tests/bench/timed_step.h"

namespace examples {

namespace {

// The parameters are compared after this number of steps in each mode; in the timed runs the faster
// mode makes more steps.
constexpr int64_t kCompared = 10;

// Repeats a step on one batch; the interface is that of timed().
struct Repeated {
  Trainer& trainer;
  std::vector<brrr::Tensor> first;
  int64_t steps = 0;

  explicit Repeated(Trainer& t) : trainer(t) {
    for (const brrr::Tensor& p : t.parameters()) first.push_back(p.detach().clone());
  }
  void step() {
    trainer.step(0).item<float>();
    ++steps;
  }
  void reset() const {
    const brrr::NoGradGuard guard;
    const auto now = trainer.parameters();
    for (size_t k = 0; k < now.size(); ++k) now[k].copy_(first[k]);
  }
};

// The sum over all processes.
int64_t sum_over_ranks(uint64_t n) {
  const brrr::Tensor own = brrr::full({1}, static_cast<int64_t>(n), brrr::kInt64);
  return brrr::dist::all_reduce(own).item<int64_t>();
}

Json measure_row(const Task& task, const Batches& batches, const std::string& optimizer, Way way,
                 double seconds) {
  const auto trainer = make_trainer(task, batches, optimizer, way);
  for (int64_t i = 0; i < kCompared; ++i) trainer->step(i);
  const uint64_t parameters = checksum(trainer->parameters());
  Repeated run(*trainer);
  const brrr::dist::Stats before = brrr::dist::stats();
  const Timed t = timed(run, seconds, first_ranks_clock);
  const ExchangeCost cost = exchange_cost(before, static_cast<double>(run.steps));
  const brrr::StepStats stats = trainer->stats();
  return {{"task", task.name},
          {"batch", batches.x[0].size(0)},
          {"mode", name_of(way)},
          {"ms", t.seconds * 1e3},
          {"mb", cost.megabytes},
          {"under_way_ms", cost.under_way_ms},
          {"waited_ms", cost.waited_ms},
          {"parameters", fmt::format("{:016x}", parameters)},
          {"fallbacks", sum_over_ranks(stats.fallbacks)},
          {"last_fallback", stats.last_fallback}};
}

// Quotes a word for the shell.
std::string quoted(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string command_of(int ranks, const std::vector<std::string>& arguments) {
  // By default Open MPI refuses to start more processes than cores, and to run as root, which is
  // usual in containers.
  std::string command = "OMPI_MCA_rmaps_base_oversubscribe=1 ";
  if (geteuid() == 0) command += "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ";
  const auto program = own_path().parent_path() / "overhead";
  command += fmt::format("BRRR_SCALING_ROW=1 mpirun -np {} {}", ranks, quoted(program));
  for (const std::string& a : arguments) command += ' ' + quoted(a);
  return command;
}

// For each task, batch and number of processes, eager mode's row comes first.
void check_row(const Json& r, const std::string& eager_parameters, Scaling& all) {
  const auto mode = r["mode"].get<std::string>();
  const auto ranks = r["ranks"].get<int64_t>(), fallbacks = r["fallbacks"].get<int64_t>();
  const std::string run =
      fmt::format("{}, batch {}, {} process{}, {}", r["task"].get<std::string>(),
                  r["batch"].get<int64_t>(), ranks, ranks == 1 ? "" : "es", mode);
  if (fallbacks > 0) {
    all.complaints.push_back(fmt::format("{}: {} steps fell back to the reference walker: {}", run,
                                         fallbacks, r["last_fallback"].get<std::string>()));
  }
  if (mode == name_of(Way::Eager)) return;
  ++all.compared;
  if (r["parameters"] != eager_parameters) {
    all.complaints.push_back(fmt::format(
        "{}: the parameters after {} steps are not eager's, bit for bit", run, kCompared));
  }
}

void show_row(const Json& r, std::vector<Sheet>& sheets) {
  const std::string title = r["task"].get<std::string>() + ", samples a second of all processes";
  const auto found = [&] { return std::ranges::find(sheets, title, &Sheet::title); };
  if (found() == sheets.end()) {
    sheets.push_back({"processes",
                      title,
                      {"batch", "mode", "processes", "ms a step", "samples/s", "gain", "MB sent",
                       "under way ms", "waited ms"}});
  }
  const auto v = [&](const char* key) { return r[key].get<double>(); };
  found()->rows.push_back({r["batch"].get<int64_t>(), r["mode"].get<std::string>(),
                           r["ranks"].get<int64_t>(), v("ms"), v("samples_per_s"), times(v("gain")),
                           v("mb"), v("under_way_ms"), v("waited_ms")});
}

}  // namespace

void print_scaling_row(const std::vector<Task>& tasks, const std::string& optimizer,
                       double seconds) {
  for (const Task& task : tasks) {
    for (int64_t batch : task.sizes) {
      const Batches batches = task.batches(batch);
      for (Way way : {Way::Eager, Way::Graph}) {
        fmt::print("{}\n", measure_row(task, batches, optimizer, way, seconds).dump());
        std::fflush(stdout);
      }
    }
  }
}

Scaling measure_scaling(int most, const std::vector<std::string>& arguments) {
  Scaling all;
  std::map<std::string, double> alone;
  std::string eager_parameters;
  for (int ranks = 1; ranks <= most; ++ranks) {
    const std::string command = command_of(ranks, arguments);
    const std::vector<std::string> lines = run_child(command);
    BRRR_CHECK(!lines.empty(), "mpirun is not here, or this failed: {}", command);
    for (const std::string& line : lines) {
      Json& r = all.rows.emplace_back(Json::parse(line));
      const double rate = ranks * r["batch"].get<double>() / r["ms"].get<double>() * 1e3;
      const std::string key =
          fmt::format("{} {} {}", r["task"].dump(), r["batch"].dump(), r["mode"].dump());
      r["ranks"] = ranks;
      r["samples_per_s"] = rate;
      r["gain"] = rate / alone.emplace(key, rate).first->second;
      if (r["mode"] == name_of(Way::Eager)) eager_parameters = r["parameters"];
      check_row(r, eager_parameters, all);
      show_row(r, all.sheets);
    }
  }
  return all;
}

}  // namespace examples
