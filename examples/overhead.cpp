// How much of a training step is overhead, and what graph mode removes of it.
#include <brrr/brrr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "examples/common/options.h"
#include "examples/common/report.h"

using brrr::Tensor;
using namespace examples;

namespace {

using Clock = Trace::Clock;

struct Options {
  std::string model = "mlp", optimizer = "adamw", json, plot, trace;
  std::vector<int64_t> sizes = {1, 8, 32, 128, 512, 1024};
  int64_t threads = 1;
  double seconds = 0.5;
};

const std::vector<int64_t> kLayers = {784, 256, 128, 10};
constexpr size_t kBatches = 16;

void add_options(CLI::App& app, Options& o) {
  auto option = [&](const char* name, auto& v, const char* text, const CLI::Validator& check) {
    app.add_option(name, v, text)->check(check)->capture_default_str();
  };
  const CLI::Validator known(
      [](std::string& v) {
        if (v == "mlp") return std::string();
        if (v == "gpt" || v == "all") {
          return std::string("gpt arrives with the transformer; this version measures mlp");
        }
        return "expected mlp, got '" + v + "'";
      },
      "");
  option("--model", o.model, "what is trained: mlp, 784-256-128-10", known);
  app.add_option("--sizes", o.sizes, "batch sizes; five or more give a summary")
      ->delimiter(',')
      ->check(whole_number(1))
      ->capture_default_str();
  option("--optimizer", o.optimizer, "adamw or sgd", one_of({"adamw", "sgd"}));
  option("--threads", o.threads, "CPU threads", whole_number(1));
  option("--seconds", o.seconds, "for eager's steps of each size; the other modes make as many",
         real_number(0.01, 1000));
  option("--json", o.json, "write all figures to this file", output_file());
  option("--plot", o.plot, "draw us a step over batch size (SVG, needs gnuplot)", output_file());
  option("--trace", o.trace, "write a few steps of each mode for chrome://tracing", output_file());
}

/// Inputs that rotate, so that no batch stays in the cache for the next step.
struct Batches {
  std::vector<Tensor> x, y;
  explicit Batches(int64_t batch) {
    brrr::manual_seed(7);
    for (size_t i = 0; i < kBatches; ++i) {
      x.push_back(brrr::randn({batch, kLayers.front()}));
      y.push_back(brrr::randint(0, kLayers.back(), {batch}));
    }
  }
};

std::unique_ptr<brrr::optim::Optimizer> make_optimizer(const std::string& name,
                                                       const std::vector<Tensor>& parameters) {
  if (name == "sgd") {
    return std::make_unique<brrr::optim::SGD>(parameters, brrr::optim::SGDOptions{});
  }
  return std::make_unique<brrr::optim::AdamW>(parameters, brrr::optim::AdamWOptions{});
}

class MlpTrainer : public Trainer {
 public:
  MlpTrainer(const Batches& batches, const std::string& optimizer, const brrr::StepOptions& options)
      : batches_(batches),
        seeded_((brrr::manual_seed(42), 0)),
        model_({.sizes = kLayers}),
        optimizer_(make_optimizer(optimizer, model_.parameters())),
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
  std::vector<Tensor> parameters() const override { return model_.parameters(); }

 private:
  struct Body {
    MlpTrainer* self;
    Tensor operator()(const Tensor& x, const Tensor& y) const { return self->body(x, y); }
  };

  Tensor body(const Tensor& x, const Tensor& y) {
    mark(0);
    Tensor loss = brrr::cross_entropy(model_(x), y);
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
  int seeded_;  // Before the model: every trainer starts with the same weights.
  brrr::models::MLP model_;
  std::unique_ptr<brrr::optim::Optimizer> optimizer_;
  double lr_;
  bool eager_;
  std::array<Clock::time_point, 4> marks_;
  brrr::Step<Body> step_;
};

SizeResult measure_size(const Options& o, int64_t batch, const MachineLimits& machine) {
  const Batches batches(batch);
  const MakeTrainer make = [&](const brrr::StepOptions& options) {
    return std::make_unique<MlpTrainer>(batches, o.optimizer, options);
  };
  const PrivateCache cache;  // One a size: sizes may share kernels.
  SizeResult r;
  r.batch = batch;
  r.cold = measure_one_time(make);
  r.warm = measure_one_time(make);
  r.cells = measure(make, o.seconds);
  const auto ops = mlp_cost(kLayers, batch, o.optimizer);
  for (const OpCost& op : ops) {
    r.flops += op.flops;
    r.bytes += op.bytes;
  }
  const double touched = mlp_working_set(kLayers, batch, o.optimizer);
  r.copy_gbs = brrr::bench::stream_like(1, static_cast<size_t>(touched / 2)).gb_per_second;
  const double gflops = machine.fma_gflops * static_cast<double>(o.threads);
  r.eager = split(ops, r.cells.cells[0].queued.median, gflops, r.copy_gbs);
  r.graph = split(ops, r.cells.cells[2].queued.median, gflops, r.copy_gbs);
  return r;
}

// Never the runs that the figures come from: tracing takes time itself.
std::string trace_text(const Options& o, int64_t batch) {
  const Batches batches(batch);
  Trace trace;
  for (const Mode& mode : modes()) {
    MlpTrainer t(batches, o.optimizer, mode.options);
    trace.row(fmt::format("{}, batch {}", mode.name, batch));
    t.trace = &trace;
    for (int i = 0; i < 12; ++i) {
      if (mode.frozen && i == 4) t.freeze();
      t.step(i);
    }
  }
  return trace.json();
}

int run(const Options& o) {
  Report report{fmt::format("MLP {}", fmt::join(kLayers, "-")),
                o.optimizer,
                static_cast<int>(o.threads),
                brrr::bench::measure_machine(),
                spin_round_trip_ns(),
                {}};
  fmt::print("{}", header_text(report));
  std::string complaints;
  for (int64_t batch : o.sizes) {
    std::fflush(stdout);
    report.sizes.push_back(measure_size(o, batch, report.machine));
    const std::string& complaint = report.sizes.back().cells.complaint;
    if (!complaint.empty()) complaints += fmt::format("batch {}: {}\n", batch, complaint);
  }
  fmt::print("{}", tables_text(report));
  if (!o.json.empty()) write_file(o.json, json_text(report));
  if (!o.plot.empty() && !draw(report, o.plot)) {
    fmt::print("gnuplot is not installed: {} is not drawn\n", o.plot);
  }
  if (!o.trace.empty()) {
    const auto near = [](int64_t a, int64_t b) { return std::abs(a - 32) < std::abs(b - 32); };
    write_file(o.trace, trace_text(o, *std::min_element(o.sizes.begin(), o.sizes.end(), near)));
  }
  if (!complaints.empty()) {
    std::fflush(stdout);
    fmt::print(stderr, "overhead: do not use these figures:\n{}", complaints);
    return 1;
  }
  fmt::print("all modes ended with the same parameters, bit for bit; no step fell back\n");
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
