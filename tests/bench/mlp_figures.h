#pragma once

// The MLP step in each mode, beside the floor in the same process and libtorch in one of its own.

#include <array>
#include <cmath>
#include <memory>

#include "backends/cpu/allocator.h"
#include "tests/bench/bench.h"
#include "tests/bench/report.h"

namespace brrr::bench {

inline double median(std::vector<double> v) {
  return v.empty() ? 0 : quantiles(std::move(v)).median;
}

// Kilobytes at the peak of a step beyond what was live before the first one.
template <class Run> double peak_kilobytes(const Run& run) {
  const std::size_t base = cpu::memory_stats().live;
  run(4);
  cpu::reset_peak();
  run(1);
  return static_cast<double>(cpu::memory_stats().peak - base) / 1e3;
}

inline constexpr std::array ways = {Way::Eager, Way::Graph, Way::Frozen};

// The same steps in each mode: the same bits; and the floor's loss, to rounding.
inline void check_agreement(Report& report, const std::string& optimizer, std::int64_t batch) {
  constexpr int steps = 40;
  FloorRun floor(optimizer, batch);
  floor.run(steps);
  std::vector<std::vector<float>> finals;
  float loss = 0;
  for (const Way way : ways) {
    BrrrMlp mlp(optimizer, batch, way);
    mlp.run(steps);
    finals.push_back(mlp.parameters());
    loss = mlp.loss();
    if (mlp.stats().fallbacks > 0) report.wrong("mlp: fallback: " + mlp.stats().last_fallback);
  }
  const auto differs = [&](std::size_t k) {
    return !same_bits(tensor(finals[0]), tensor(finals[k]));
  };
  const std::string at = fmt::format("mlp, {}, batch {}", optimizer, batch);
  if (differs(1) || differs(2)) report.wrong(at + ": final parameters of the modes differ");
  if (!(std::abs(loss - floor.loss()) <= 1e-3f * std::abs(floor.loss()) + 1e-5f)) {
    report.wrong(fmt::format("{}: loss {} is not the floor's {}", at, loss, floor.loss()));
  }
}

struct MlpFigures {
  double floor_us = 0, torch_us = 0;
  std::array<double, 3> us{}, to_floor{};
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
    for (const json& j : run_peer(fmt::format("--optimizer {} --batch {} --steps {} --warmup {}",
                                              optimizer, batch, steps, steps / 4))) {
      torch.push_back(j["us_per_step_median"]);
    }
  }
  MlpFigures m;
  m.floor_us = turns.ns(f) / 1e3;
  m.torch_us = median(torch);
  for (std::size_t k = 0; k < ways.size(); ++k) {
    m.us[k] = turns.ns(at[k]) / 1e3;
    m.to_floor[k] = turns.ratio(at[k], f);
  }
  return m;
}

}  // namespace brrr::bench
