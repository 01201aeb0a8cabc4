// Measures how much of a training step is overhead, and how much of that graph mode removes.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "examples/common/options.h"
#include "examples/common/report.h"
#include "examples/common/scaling.h"
#include "examples/common/task.h"
#include "tests/bench/measure/temporary.h"

using namespace examples;

namespace {

constexpr const char* kBoth = "all";  // Both devices.

// 0, or at least 2: a single process gains nothing.
Check number_of_ranks() {
  return [](const std::string& text) {
    const std::string wrong = whole_number(0, 4096)(text);
    if (!wrong.empty() || number_of(text) != 1) return wrong;
    return fmt::format("expected at least 2 processes, or 0 for no such table, got '{}'", text);
  };
}

struct Options : CommandLine {
  std::string model = "mlp", device = "cpu", optimizer = "adamw", json, plot, trace;
  std::vector<int64_t> sizes;  // Empty: the task's own.
  double seconds = 0.5;
  int64_t ranks = 0;
  bool own = false;

  Options()
      : CommandLine("Measures a training step in every mode and says where its time goes.",
                    "overhead") {
    threads = 1;
    add("--model", model, "what is trained: mlp, 784-256-128-10; gpt, 2 layers of width 64; all",
        one_of({"mlp", "gpt", "all"}));
    flag("--own", own,
         "your own step instead, which examples/common/own.cpp makes; says what bounds it");
    excludes("--own", "--model");
    add("--device", device, "cpu; cuda; all, one after the other", one_of({"cpu", "cuda", kBoth}));
    plain("--sizes", sizes,
          "batch sizes; five or more give a summary [mlp: 1 to 1024, gpt: 1 to 64]",
          whole_number(1));
    add("--optimizer", optimizer, "adamw or sgd", one_of({"adamw", "sgd"}));
    add("--threads", threads, "CPU threads", thread_count());
    add("--ranks", ranks,
        "instead: what a step gains from 2, 3, .. N processes, which mpirun starts (0: no)",
        number_of_ranks());
    add("--seconds", seconds, "for eager's steps of each size; the other modes make as many",
        real_number(0.01, 1000));
    add_output("--json", json, "write all figures to this file");
    add_output("--plot", plot, "draw us a step over batch size (SVG)");
    add_output("--trace", trace, "write a few steps of each mode for chrome://tracing");
  }
};

SizeResult measure_size(const Options& o, const Task& task, int64_t batch, const Limits& limits) {
  const Batches batches = task.batches(batch).to(limits.device);
  const MakeTrainer make = [&](Way way) { return make_trainer(task, batches, o.optimizer, way); };
  // On a GPU the ops' own kernels are compiled at first use, in eager mode too: compile them now.
  make(Way::Eager)->scheduled_step(0);
  const PrivateCache cache;  // One per size, because sizes may share kernels.
  SizeResult r;
  r.batch = batch;
  r.cold = measure_one_time(make);
  r.warm = measure_one_time(make);
  static_cast<Cells&>(r) = measure(make, o.seconds);
  constexpr int64_t profiled_steps = 5;
  r.eager = dissect(*make(Way::Eager), r.of(Way::Eager).queued.median, profiled_steps);
  r.graph = dissect(*make(Way::Graph), r.of(Way::Graph).queued.median, profiled_steps);
  return r;
}

// Traces separate runs, not those that the figures come from, because tracing takes time.
void add_trace(Trace& trace, const Options& o, const Task& task, brrr::Device device,
               int64_t batch) {
  const Batches batches = task.batches(batch).to(device);
  const TemporaryFolder folder;
  for (Way way : kWays) {
    const auto t = make_trainer(task, batches, o.optimizer, way);
    const std::string name =
        fmt::format("{} on {}, {}, batch {}", task.name, brrr::name(device), name_of(way), batch);
    trace.row(name);
    t->trace = &trace;
    for (int i = 0; i < 12; ++i) {
      if (way == Way::Frozen && i == 4) t->freeze();
      t->scheduled_step(i);
    }
    t->trace = nullptr;
    const brrr::Profile profile;  // Adds the kernels and their modules.
    for (int i = 12; i < 15; ++i) t->scheduled_step(i);
    const std::string file = folder.file("trace.json");
    profile.write_trace(file);
    trace.add(name, brrr::bench::parse_json(brrr::data::load_bytes(file))["traceEvents"]);
  }
}

// The tasks with the batch sizes to measure.
std::vector<Task> tasks_of(const Options& o) {
  std::vector<Task> all = tasks(o.own ? "own" : o.model);
  for (Task& task : all) {
    if (!o.sizes.empty()) task.sizes = distinct(o.sizes);
  }
  return all;
}

void write_files(const Options& o, const std::vector<Task>& all, const std::vector<Limits>& devices,
                 const std::vector<Report>& reports) {
  if (!o.json.empty()) write_file(o.json, json_text(reports));
  if (!o.plot.empty()) write_file(o.plot, charts_svg(reports));
  if (o.trace.empty()) return;
  Trace trace;
  for (const Task& task : all) {
    const auto near = [](int64_t a, int64_t b) { return std::abs(a - 32) < std::abs(b - 32); };
    const int64_t batch = *std::ranges::min_element(task.sizes, near);
    for (const Limits& l : devices) add_trace(trace, o, task, l.device, batch);
  }
  write_file(o.trace, trace.json());
}

// Appends to `complaints` why figures cannot be trusted.
Report measure_task(const Options& o, const Task& task, const Limits& limits,
                    std::string& complaints) {
  Report report{task.name, task.one_kernel, o.optimizer, limits, {}};
  for (int64_t batch : task.sizes) {
    std::fflush(stdout);
    report.sizes.push_back(measure_size(o, task, batch, limits));
    const std::string& complaint = report.sizes.back().complaint;
    if (complaint.empty()) continue;
    complaints += fmt::format("{} on {}, batch {}: {}\n", task.name, brrr::name(limits.device),
                              batch, complaint);
  }
  return report;
}

// Prints brrr::diagnose's report of the eager step.
void diagnose_sizes(const Options& o, const Task& task, brrr::Device device) {
  for (int64_t batch : task.sizes) {
    const Batches batches = task.batches(batch).to(device);
    const auto trainer = make_trainer(task, batches, o.optimizer, Way::Eager);
    fmt::print("\nbatch {}: {}\n", batch, trainer->diagnose().c_str());
  }
}

int distrust(const std::string& complaints) {
  std::fflush(stdout);
  fmt::print(stderr, "overhead: do not use these figures:\n{}", complaints);
  return 1;
}

int scale(int ranks, const std::vector<std::string>& arguments) {
  const Scaling all = measure_scaling(ranks, arguments);
  for (const Sheet& s : all.sheets) fmt::print("{}\n\n{}\n", s.title, s.text());
  if (!all.complaints.empty()) {
    return distrust(fmt::format("{}\n", fmt::join(all.complaints, "\n")));
  }
  fmt::print("both modes had the same parameters, bit for bit; no step fell back\n");
  return 0;
}

int run(const Options& o) {
  const std::vector<Task> all = tasks_of(o);
  std::vector<brrr::Device> places;  // First, so that a missing GPU is reported immediately.
  for (const char* name : {"cpu", "cuda"}) {
    if (o.device == name || o.device == kBoth) places.push_back(device_of(name));
  }
  const std::vector<Limits> devices = measure_limits(places);
  fmt::print("{}", header_text(devices));
  std::vector<Report> reports;
  std::string complaints;
  for (const Task& task : all) {
    for (const Limits& l : devices) {
      reports.push_back(measure_task(o, task, l, complaints));
      fmt::print("{}", tables_text(reports.back()));
      if (o.own) diagnose_sizes(o, task, l.device);
    }
  }
  fmt::print("{}{}", devices_text(reports), notes_text(reports));
  write_files(o, all, devices, reports);
  if (!complaints.empty()) return distrust(complaints);
  fmt::print("all modes ended with the same parameters, bit for bit; no step {}fell back\n",
             fallbacks_text(reports).empty() ? "" : "that has a figure ");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return o.run(argc, argv, [&] {
    if (o.ranks == 0) return run(o);
    BRRR_CHECK(o.device == "cpu" && o.json.empty() && o.plot.empty() && o.trace.empty(),
               "--ranks prints tables of steps on the CPU; leave out --device, --json, --plot and "
               "--trace");
    if (std::getenv("BRRR_SCALING_ROW")) {
      print_scaling_row(tasks_of(o), o.optimizer, o.seconds);
      return 0;
    }
    return scale(static_cast<int>(o.ranks), {argv + 1, argv + argc});
  });
}
