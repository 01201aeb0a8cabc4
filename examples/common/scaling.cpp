#include "examples/common/scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "core/check.h"
#include "tests/bench/measure/exchange.h"
#include "tests/bench/timed_step.h"

namespace examples {

namespace {

// A step over and over on one batch, as timed() takes it.
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

ScalingRow measure_row(const Task& task, const Batches& batches, const std::string& optimizer,
                       Way way, double seconds) {
  const auto trainer = make_trainer(task, batches, optimizer, way);
  for (int i = 0; i < 3; ++i) trainer->step(0);
  Repeated run(*trainer);
  const brrr::dist::Stats before = brrr::dist::stats();
  const Timed t = timed(run, seconds, first_ranks_clock);
  const ExchangeCost cost = exchange_cost(before, static_cast<double>(run.steps));
  return {{"task", task.name},
          {"batch", batches.x[0].size(0)},
          {"mode", name_of(way)},
          {"ms", t.seconds * 1e3},
          {"mb", cost.megabytes},
          {"under_way_ms", cost.under_way_ms},
          {"waited_ms", cost.waited_ms},
          {"hidden", cost.hidden()},
          {"threads", brrr::device_properties(brrr::kCPU).multiprocessors}};
}

// The lines that a command writes on stdout.
std::vector<std::string> lines_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  BRRR_CHECK(pipe, "--ranks: {} cannot be started", command);
  std::string text;
  char part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) text.append(part, n);
  BRRR_CHECK(pclose(pipe) == 0, "mpirun is not here, or this failed: {}", command);
  std::vector<std::string> lines;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

// One word of a shell's command.
std::string quoted(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string command_of(const std::string& program, int ranks,
                       const std::vector<std::string>& arguments) {
  // Containers run as root, which Open MPI asks to confirm.
  std::string command =
      geteuid() == 0 ? "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " : "";
  command += fmt::format("BRRR_SCALING_ROW=1 mpirun -np {} {}", ranks, quoted(program));
  for (const std::string& a : arguments) command += ' ' + quoted(a);
  return command;
}

}  // namespace

void print_scaling_row(const std::vector<Task>& tasks, const std::vector<int64_t>& sizes,
                       const std::string& optimizer, double seconds) {
  for (const Task& task : tasks) {
    for (int64_t batch : sizes.empty() ? task.sizes : sizes) {
      const Batches batches = task.batches(batch);
      for (Way way : {Way::Eager, Way::Graph}) {
        fmt::print("{}\n", measure_row(task, batches, optimizer, way, seconds).dump());
        std::fflush(stdout);
      }
    }
  }
}

void measure_scaling(const std::string& program, int most,
                     const std::vector<std::string>& arguments,
                     const std::function<void(const ScalingRow&)>& f) {
  std::map<std::string, double> alone;
  for (int ranks = 1; ranks <= most; ++ranks) {
    for (const std::string& line : lines_of(command_of(program, ranks, arguments))) {
      ScalingRow r = ScalingRow::parse(line);
      const double rate = ranks * r["batch"].get<double>() / r["ms"].get<double>() * 1e3;
      const std::string key =
          fmt::format("{} {} {}", r["task"].dump(), r["batch"].dump(), r["mode"].dump());
      r["ranks"] = ranks;
      r["samples_per_s"] = rate;
      r["gain"] = rate / alone.emplace(key, rate).first->second;
      f(r);
    }
  }
}

std::string program_file(const std::string& name) {
  char self[4096];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  const std::string path(self, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return path.substr(0, path.find_last_of('/') + 1) + name;
}

void show_scaling(int most, const std::vector<std::string>& arguments) {
  fmt::print("{:<6} {:<12} {:>5} {:>8} {:>10} {:>7} {:>8} {:>12} {:>9}\n", "batch", "mode", "ranks",
             "ms", "samples/s", "gain", "MB sent", "under way ms", "waited ms");
  std::string task;
  measure_scaling(program_file("overhead"), most, arguments, [&](const ScalingRow& r) {
    if (r["task"] != task) fmt::print("{}\n", task = r["task"].get<std::string>());
    const auto v = [&](const char* key) { return r[key].get<double>(); };
    fmt::print("{:<6} {:<12} {:>5} {:>8.2f} {:>10.0f} {:>6.2f}x {:>8.3f} {:>12.2f} {:>9.2f}\n",
               v("batch"), r["mode"].get<std::string>(), v("ranks"), v("ms"), v("samples_per_s"),
               v("gain"), v("mb"), v("under_way_ms"), v("waited_ms"));
    std::fflush(stdout);
  });
}

}  // namespace examples
