#pragma once

// GPTs from a character model's size to GPT-2's: graph mode against eager, in time and in memory
// from the first call on, and the time to build their kernels.

#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "models/gpt.h"
#include "models/optim.h"
#include "tests/bench/bench.h"
#include "tests/bench/measure/temporary.h"
#include "tests/bench/limit.h"
#include "tests/bench/report.h"

namespace brrr::bench {

struct Scale {
  const char* name;
  models::GPTOptions model;
  std::int64_t batch;
  int rounds;                       // of timings
  double gain = 1.0, memory = 1.0;  // Bars: graph over eager, graph's memory to eager's.
  bool limit = false;               // Whether the step is also compared with its limit.

  std::string id() const { return fmt::format("{},{}", name, batch); }
};

inline std::array<Scale, 6> scales() {
  const auto gpt = [](std::int64_t vocab, std::int64_t block, std::int64_t layers,
                      std::int64_t heads, std::int64_t width) {
    return models::GPTOptions{
        .vocab = vocab, .block = block, .layers = layers, .heads = heads, .width = width};
  };
  return {{{"2x64", gpt(65, 32, 2, 4, 64), 1, 90},
           {"2x64", gpt(65, 32, 2, 4, 64), 8, 60, 1.25, 1.0, true},
           {"2x64", gpt(65, 32, 2, 4, 64), 64, 30, 1.15, 0.85, true},
           {"4x128", gpt(65, 64, 4, 4, 128), 12, 30, 1.0, 1.0, true},
           {"6x512", gpt(8192, 128, 6, 8, 512), 2, 10},
           {"12x768", gpt(50257, 256, 12, 12, 768), 1, 7}}};
}

// The step of train_gpt: AdamW, clipping, and no update if the loss or a gradient is not finite.
class ScaledGpt {
 public:
  using Fn = std::function<Tensor(const Tensor&, const Tensor&)>;

  ScaledGpt(const Scale& s, Mode mode)
      : model_(s.model),
        opt_(model_.parameters(), {.lr = 1e-4}),
        step_([this](const Tensor& x, const Tensor& y) { return train(x, y); }, {.mode = mode}) {
    for (int k = 0; k < 4; ++k) {
      x_.push_back(randint(0, s.model.vocab, {s.batch, s.model.block}));
      y_.push_back(randint(0, s.model.vocab, {s.batch, s.model.block}));
    }
  }
  void run(std::int64_t steps) {
    for (std::int64_t k = 0; k < steps; ++k, ++at_) step_(x_[at_ % 4], y_[at_ % 4]);
  }
  std::vector<Tensor> parameters() const { return model_.parameters(); }
  StepStats stats() const { return step_.stats(); }

 private:
  Tensor train(const Tensor& x, const Tensor& y) {
    opt_.zero_grad();
    const Tensor loss = model_.loss(x, y);
    loss.backward();
    const Tensor norm = optim::clip_grad_norm_(model_.parameters(), 1.0);
    opt_.step(isnan((loss + norm) * 0.0));
    return loss;
  }
  models::GPT model_;
  optim::AdamW opt_;
  Step<Fn> step_;
  std::vector<Tensor> x_, y_;
  std::size_t at_ = 0;
};

inline Scale scale_named(const std::string& name) {
  for (const Scale& s : scales()) {
    if (s.id() == name) return s;
  }
  throw std::invalid_argument("--scale: there is no model '" + name + "'");
}

// Output of a child process: peak megabytes of tensors over the first four calls, megabytes
// resident, seconds to build.
inline int print_scale(const std::string& name, const std::string& mode) {
  manual_seed(1);
  ScaledGpt gpt(scale_named(name), mode == "eager" ? Mode::Eager : Mode::Graph);
  double most = 0;
  for (int k = 0; k < 4; ++k) {
    cpu::reset_peak();
    gpt.run(1);
    most = std::max(most, static_cast<double>(cpu::memory_stats().peak) / 1e6);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (gpt.stats().fallbacks > 0) throw Error("fell back: " + gpt.stats().last_fallback);
  std::printf("%.3f %.3f %.4f\n", most, static_cast<double>(usage.ru_maxrss) * 1024 / 1e6,
              gpt.stats().build_seconds);
  return 0;
}

struct ScaleChild {
  double live = NAN, resident = NAN, build = NAN;
};

inline ScaleChild run_scale_child(const Scale& s, const char* mode, const std::string& cache,
                                  int threads) {
  ScaleChild c;
  const auto lines = run_child(fmt::format("BRRR_CACHE_DIR='{}' '{}' --threads {} --scale {} {}",
                                           cache, own_path().string(), threads, s.id(), mode));
  if (!lines.empty()) {
    std::sscanf(lines[0].c_str(), "%lf %lf %lf", &c.live, &c.resident, &c.build);
  }
  return c;
}

inline void scale_children(Report& report, const Scale& s, const std::string& name, int threads) {
  const TemporaryFolder folder;
  const std::string dir = folder.path.string();
  const ScaleChild eager = run_scale_child(s, "eager", dir, threads);
  const ScaleChild cold = run_scale_child(s, "graph", dir, threads);
  const ScaleChild warm = run_scale_child(s, "graph", dir, threads);
  if (!(eager.live > 0 && cold.live > 0 && warm.live > 0)) {
    return report.wrong(name + ": a process that measures memory failed");
  }
  const auto both = [](double a, double b) { return fmt::format("{:.1f} and {:.1f} MB", a, b); };
  report.at_most(name + "graph's memory to eager's, from the first call on", s.memory,
                 cold.live / eager.live, "x", both(cold.live, eager.live));
  report.show(name + "the same, resident, kernels and all", cold.resident / eager.resident, "x",
              both(cold.resident, eager.resident));
  report.at_most(name + "kernels built, cold", s.model.layers > 2 ? 800 : 600, cold.build * 1e3,
                 "ms");
  report.at_most(name + "kernels built, from the disk cache", 30, warm.build * 1e3, "ms");
}

inline void scale_part(Report& report, int threads) {
  for (const Scale& s : scales()) {
    const std::string name = fmt::format("GPT {} batch {}, ", s.name, s.batch);
    scale_children(report, s, name, threads);
    manual_seed(1);
    ScaledGpt eager(s, Mode::Eager);
    manual_seed(1);
    ScaledGpt graph(s, Mode::Graph);
    Turns turns;
    const int e = turns.add([&](std::int64_t n) { eager.run(n); });
    const int g = turns.add([&](std::int64_t n) { graph.run(n); });
    graph.run(3);  // The first call runs on the walker, the second builds.
    eager.run(3);
    if (!same_bits(eager.parameters(), graph.parameters())) {
      report.wrong(name + "the modes' parameters differ");
    }
    turns.measure(s.rounds, 1.0, 1.0);
    report.at_least(name + "graph over eager", s.gain, 1 / turns.ratio(g, e), "x",
                    fmt::format("{:.3f} and {:.3f} ms", turns.ns(g) / 1e6, turns.ns(e) / 1e6));
    const auto limit = step_limit([&](std::int64_t n) { graph.run(n); }, 8);
    if (s.limit) report_limit(report, name, turns.ns(g) / 1e3, limit);
    const StepStats stats = graph.stats();
    report.at_most(name + "kernels of a step", 64 + 24 * static_cast<double>(s.model.layers - 2),
                   static_cast<double>(stats.kernels_per_replay), "");
    if (stats.fallbacks > 0) report.wrong(name + stats.last_fallback);
  }
}

}  // namespace brrr::bench
