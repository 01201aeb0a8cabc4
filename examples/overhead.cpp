// How much of a training step is overhead, and what graph mode removes of it.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "examples/common/options.h"
#include "examples/common/report.h"
#include "examples/common/task.h"

using brrr::Tensor;
using namespace examples;

namespace {

using Clock = Trace::Clock;

constexpr const char* kBoth = "all";  // Devices.

struct Options {
  std::string model = "mlp", device = "cpu", optimizer = "adamw", json, plot, trace;
  std::vector<int64_t> sizes;  // Empty: the task's own.
  int64_t threads = 1;
  double seconds = 0.5;
};

void add_options(CLI::App& app, Options& o) {
  auto option = [&](const char* name, auto& v, const char* text, const CLI::Validator& check) {
    app.add_option(name, v, text)->check(check)->capture_default_str();
  };
  option("--model", o.model, "what is trained: mlp, 784-256-128-10; gpt, 2 layers of width 64; all",
         one_of({"mlp", "gpt", "all"}));
  option("--device", o.device, "cpu; cuda; all, one after the other",
         one_of({"cpu", "cuda", kBoth}));
  app.add_option("--sizes", o.sizes,
                 "batch sizes; five or more give a summary [mlp: 1 to 1024, gpt: 1 to 64]")
      ->delimiter(',')
      ->check(whole_number(1));
  option("--optimizer", o.optimizer, "adamw or sgd", one_of({"adamw", "sgd"}));
  option("--threads", o.threads, "CPU threads", whole_number(1));
  option("--seconds", o.seconds, "for eager's steps of each size; the other modes make as many",
         real_number(0.01, 1000));
  option("--json", o.json, "write all figures to this file", output_file());
  option("--plot", o.plot, "draw us a step over batch size (SVG, needs gnuplot)", output_file());
  option("--trace", o.trace, "write a few steps of each mode for chrome://tracing", output_file());
}

std::unique_ptr<brrr::optim::Optimizer> make_optimizer(const std::string& name,
                                                       const std::vector<Tensor>& parameters) {
  if (name == "sgd") {
    return std::make_unique<brrr::optim::SGD>(parameters, brrr::optim::SGDOptions{});
  }
  return std::make_unique<brrr::optim::AdamW>(parameters, brrr::optim::AdamWOptions{});
}

// With the same weights every time, on every device.
std::unique_ptr<Learner> make_learner(const Task& task, brrr::Device device) {
  brrr::manual_seed(42);
  auto learner = task.learner();
  learner->model().to(device);
  return learner;
}

class TaskTrainer : public Trainer {
 public:
  /// The model goes where the batches are.
  TaskTrainer(const Task& task, const Batches& batches, const std::string& optimizer,
              const brrr::StepOptions& options)
      : batches_(batches),
        learner_(make_learner(task, batches.x[0].device())),
        optimizer_(make_optimizer(optimizer, learner_->model().parameters())),
        lr_(optimizer_->lr()),
        eager_(options.mode == brrr::Mode::Eager),
        step_(brrr::step(Body{this}, options)) {}

  Tensor step(int64_t i) override {
    const size_t k = static_cast<size_t>(i) % kBatches;
    optimizer_->set_lr(lr_ * (1.0 - static_cast<double>(i % 1000) / 1000));
    if (!trace) return step_(batches_.x[k], batches_.y[k]);
    return traced(k);
  }
  void freeze() override { step_.freeze(); }
  brrr::StepStats stats() const override { return step_.stats(); }
  std::vector<Tensor> parameters() const override { return learner_->model().parameters(); }

 private:
  struct Body {
    TaskTrainer* self;
    Tensor operator()(const Tensor& x, const Tensor& y) const { return self->body(x, y); }
  };

  Tensor body(const Tensor& x, const Tensor& y) {
    mark(0);
    Tensor loss = learner_->loss(x, y);
    mark(1);
    optimizer_->zero_grad();
    loss.backward();
    mark(2);
    optimizer_->step();
    mark(3);
    return loss.detach();
  }

  void mark(size_t phase) {
    if (trace) marks_[phase] = Clock::now();
  }

  // In graph mode the function runs without data: its phases are recorded or verified, and what
  // comes after it is the work itself.
  Tensor traced(size_t k) {
    const brrr::StepStats before = step_.stats();
    marks_ = {};
    const auto begin = Clock::now();
    Tensor loss = step_(batches_.x[k], batches_.y[k]);
    const auto end = Clock::now();
    const brrr::StepStats after = step_.stats();
    const bool recorded = after.recordings > before.recordings;
    const bool built = after.build_seconds > before.build_seconds;
    const std::string run = recorded ? "walk" : built ? "fuse, plan, build, replay" : "replay";
    trace->span("step", begin, end);
    if (marks_[3] == Clock::time_point()) {
      trace->span(run, begin, end);  // Frozen: the function has not been run.
      return loss;
    }
    const std::string prefix = eager_ ? "" : recorded ? "record " : "verify ";
    constexpr const char* phases[] = {"forward", "backward", "update"};
    for (size_t p = 0; p < 3; ++p) trace->span(prefix + phases[p], marks_[p], marks_[p + 1]);
    if (!eager_) trace->span(run, marks_[3], end);
    return loss;
  }

  const Batches& batches_;
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<brrr::optim::Optimizer> optimizer_;
  double lr_;
  bool eager_;
  std::array<Clock::time_point, 4> marks_;
  brrr::Step<Body> step_;
};

SizeResult measure_size(const Options& o, const Task& task, int64_t batch, const Limits& limits) {
  const Batches batches = task.batches(batch).to(limits.device);
  const MakeTrainer make = [&](const brrr::StepOptions& options) {
    return std::make_unique<TaskTrainer>(task, batches, o.optimizer, options);
  };
  // On a GPU the ops' own kernels are compiled at first use: eager mode needs them, too.
  make({.mode = brrr::Mode::Eager})->step(0);
  const PrivateCache cache;  // One a size: sizes may share kernels.
  SizeResult r;
  r.batch = batch;
  r.cold = measure_one_time(make);
  r.warm = measure_one_time(make);
  r.cells = measure(make, o.seconds);
  const auto ops = task.cost(batch, o.optimizer);
  for (const OpCost& op : ops) {
    r.flops += op.flops;
    r.bytes += op.bytes;
  }
  r.copy_gbs = limits.copy_for(task.working_set(batch, o.optimizer));
  r.eager = split(ops, r.cells.cells[0].queued.median, limits.gflops, r.copy_gbs);
  r.graph = split(ops, r.cells.cells[2].queued.median, limits.gflops, r.copy_gbs);
  return r;
}

// Never the runs that the figures come from: tracing takes time itself.
void add_trace(Trace& trace, const Options& o, const Task& task, brrr::Device device,
               int64_t batch) {
  const Batches batches = task.batches(batch).to(device);
  for (const Mode& mode : modes()) {
    TaskTrainer t(task, batches, o.optimizer, mode.options);
    trace.row(
        fmt::format("{} on {}, {}, batch {}", task.name, brrr::name(device), mode.name, batch));
    t.trace = &trace;
    for (int i = 0; i < 12; ++i) {
      if (mode.frozen && i == 4) t.freeze();
      t.step(i);
    }
  }
}

const std::vector<int64_t>& sizes_of(const Options& o, const Task& task) {
  return o.sizes.empty() ? task.sizes : o.sizes;
}

void write_files(const Options& o, const std::vector<Task>& all, const std::vector<Limits>& devices,
                 const std::vector<Report>& reports) {
  if (!o.json.empty()) write_file(o.json, json_text(reports));
  if (!o.plot.empty() && !draw(reports, o.plot)) {
    fmt::print("gnuplot is not installed: {} is not drawn\n", o.plot);
  }
  if (o.trace.empty()) return;
  Trace trace;
  for (const Task& task : all) {
    const auto near = [](int64_t a, int64_t b) { return std::abs(a - 32) < std::abs(b - 32); };
    const auto& sizes = sizes_of(o, task);
    const int64_t batch = *std::min_element(sizes.begin(), sizes.end(), near);
    for (const Limits& l : devices) add_trace(trace, o, task, l.device, batch);
  }
  write_file(o.trace, trace.json());
}

// Before anything is measured, so that a missing GPU costs no time.
std::vector<brrr::Device> devices_of(const Options& o) {
  if (o.device == kBoth) return {device_of("cpu"), device_of("cuda")};
  return {device_of(o.device)};
}

// Adds what cannot be trusted to `complaints`.
Report measure_task(const Options& o, const Task& task, const Limits& limits,
                    std::string& complaints) {
  Report report{task.name, task.one_kernel, o.optimizer, limits, {}};
  for (int64_t batch : sizes_of(o, task)) {
    std::fflush(stdout);
    report.sizes.push_back(measure_size(o, task, batch, limits));
    const std::string& complaint = report.sizes.back().cells.complaint;
    if (complaint.empty()) continue;
    complaints += fmt::format("{} on {}, batch {}: {}\n", task.name, brrr::name(limits.device),
                              batch, complaint);
  }
  return report;
}

bool all_count(const std::vector<Report>& reports) {
  for (const Report& r : reports) {
    for (const SizeResult& s : r.sizes) {
      for (const Cell& c : s.cells.cells) {
        if (!c.counts()) return false;
      }
    }
  }
  return true;
}

int run(const Options& o) {
  const std::vector<Task> all = tasks(o.model);
  const std::vector<brrr::Device> wanted = devices_of(o);
  const MachineLimits machine = brrr::bench::measure_machine();
  std::vector<Limits> devices;
  for (brrr::Device d : wanted) {
    devices.push_back(measure_limits(d, machine, static_cast<int>(o.threads)));
  }
  fmt::print("{}", header_text(devices));
  std::vector<Report> reports;
  std::string complaints;
  for (const Task& task : all) {
    for (const Limits& l : devices) {
      reports.push_back(measure_task(o, task, l, complaints));
      fmt::print("{}", tables_text(reports.back()));
    }
  }
  fmt::print("{}{}", devices_text(reports), notes_text(reports));
  write_files(o, all, devices, reports);
  if (!complaints.empty()) {
    std::fflush(stdout);
    fmt::print(stderr, "overhead: do not use these figures:\n{}", complaints);
    return 1;
  }
  fmt::print("all modes ended with the same parameters, bit for bit; no step {}fell back\n",
             all_count(reports) ? "" : "that has a figure ");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Measures a training step in every mode and says where its time goes.", "overhead");
  add_options(app, o);
  int exit_code = 0;
  if (!parse(app, argc, argv, exit_code)) return exit_code;
  use_threads(static_cast<int>(o.threads));
  std::sort(o.sizes.begin(), o.sizes.end());
  o.sizes.erase(std::unique(o.sizes.begin(), o.sizes.end()), o.sizes.end());
  try {
    return run(o);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    fmt::print(stderr, "overhead: {}\n", e.what());
    return 1;
  }
}
