#pragma once

// The MLP step in each mode, against the floor in the same process and libtorch in its own.

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "backends/cpu/allocator.h"
#include "tests/bench/bench.h"
#include "tests/bench/limit.h"
#include "tests/bench/report.h"

namespace brrr::bench {

// Peak memory of a step in kilobytes, minus what was live before the first one.
inline double peak_kilobytes(PeerRun& run) {
  const std::size_t base = cpu::memory_stats().live;
  run.run(4);
  cpu::reset_peak();
  run.run(1);
  return static_cast<double>(cpu::memory_stats().peak - base) / 1e3;
}

inline constexpr std::array ways = {Way::Eager, Way::Graph, Way::Frozen};

using MakeRun = std::function<std::unique_ptr<PeerRun>(Way)>;

// Checks that the final parameters of all modes have the same bits. Returns the last loss.
inline float check_modes(Report& report, const std::string& at, int steps, const MakeRun& make) {
  std::vector<std::vector<Tensor>> finals;
  float loss = 0;
  for (const Way way : ways) {
    const auto run = make(way);
    run->run(steps);
    finals.push_back(run->parameters());
    loss = run->loss();
    if (run->stats().fallbacks > 0) report.wrong(at + ": fallback: " + run->stats().last_fallback);
  }
  if (!same_bits(finals[0], finals[1]) || !same_bits(finals[0], finals[2])) {
    report.wrong(at + ": final parameters of the modes differ");
  }
  return loss;
}

// Also compares the loss with the floor's, up to rounding.
inline void check_agreement(Report& report, const std::string& optimizer, std::int64_t batch) {
  constexpr int steps = 40;
  FloorRun floor(optimizer, batch);
  floor.run(steps);
  const std::string at = fmt::format("mlp, {}, batch {}", optimizer, batch);
  const float loss = check_modes(
      report, at, steps, [&](Way way) { return std::make_unique<BrrrMlp>(optimizer, batch, way); });
  if (!(std::abs(loss - floor.loss()) <= 1e-3f * std::abs(floor.loss()) + 1e-5f)) {
    report.wrong(fmt::format("{}: loss {} is not the floor's {}", at, loss, floor.loss()));
  }
}

// Reports a replay that fell back: figures of the reference walker do not count.
inline bool check_replays(Report& report, const std::string& what, const StepStats& stats) {
  if (stats.fallbacks > 0) report.wrong(what + ": a replay fell back: " + stats.last_fallback);
  return stats.fallbacks == 0;
}

inline void report_memory(Report& report, const std::string& name, const MakeRun& make) {
  std::array<double, 2> peak{};
  StepStats stats;
  for (const Way way : {Way::Eager, Way::Graph}) {
    const auto run = make(way);
    peak[way == Way::Graph] = peak_kilobytes(*run);
    stats = run->stats();
  }
  if (!check_replays(report, name + "graph", stats)) return;
  const auto arena = static_cast<double>(stats.arena_bytes);
  report.at_most(name + "arena to lower bound", 1.05,
                 arena / std::max(1.0, static_cast<double>(stats.lower_bound_bytes)), "x",
                 fmt::format("{:.1f} KB", arena / 1e3));
  report.at_most(name + "graph's peak to eager's", 1.0, peak[1] / peak[0], "x",
                 fmt::format("{:.1f} and {:.1f} KB, gradients included", peak[1], peak[0]));
}

struct MlpFigures {
  double floor_us = 0, torch_us = 0, over_eager = 0;
  std::array<double, 3> us{}, to_floor{};
  StepLimit limit;
};

inline MlpFigures measure_mlp(const std::string& optimizer, std::int64_t batch, int rounds) {
  FloorRun floor(optimizer, batch);
  std::vector<std::unique_ptr<BrrrMlp>> runs;
  Turns turns;
  const int f = turns.add([&](std::int64_t n) { floor.run(n); }, [&] { floor.reset(); });
  std::array<int, 3> at{};
  for (std::size_t k = 0; k < ways.size(); ++k) {
    BrrrMlp& mlp = *runs.emplace_back(std::make_unique<BrrrMlp>(optimizer, batch, ways[k]));
    mlp.run(8);
    at[k] = turns.add([&mlp](std::int64_t n) { mlp.run(n); }, [&mlp] { mlp.reset(); });
  }
  std::vector<double> torch;
  const int parts = 3;
  for (int part = 0; part < parts; ++part) {
    turns.measure(rounds / parts, std::clamp(4.0 * static_cast<double>(batch) / 32, 4.0, 30.0));
    const int steps = batch > 128 ? 60 : 400;
    const std::string peer =
        fmt::format("--model mlp --optimizer {} --batch {} --steps {} --warmup {}", optimizer,
                    batch, steps, steps / 4);
    for (const json& j : run_peer(peer)) {
      torch.push_back(j["us_per_step_median"]);
    }
  }
  MlpFigures m;
  m.floor_us = turns.ns(f) / 1e3;
  m.torch_us = median(torch);
  m.over_eager = turns.ratio(at[0], at[1]);
  m.limit = step_limit([&](std::int64_t n) { runs[1]->run(n); }, 20);
  for (std::size_t k = 0; k < ways.size(); ++k) {
    m.us[k] = turns.ns(at[k]) / 1e3;
    m.to_floor[k] = turns.ratio(at[k], f);
  }
  return m;
}

}  // namespace brrr::bench
