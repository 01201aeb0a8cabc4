#pragma once

// Shared by the C++ programs that measure training steps for `./brrr bench --peers`: options, step
// names, timing. peer_inputs.py is the Python counterpart. C++17 and independent of brrr, for the
// peers.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "tests/bench/measure/timing.h"
#include "tests/bench/command_line.h"

namespace brrr::bench {

// Steps whose losses are compared, between brrr's modes and between programs.
inline constexpr int kLosses = 10;

struct StepsOptions {
  std::string json, inputs, only;
  int threads = 1;
  double seconds = 0.5;

  /// If the word is one of these options, stores its value and returns true.
  bool take(Words& words) {
    return words.take("--only", only) || words.take("--json", json) ||
           words.take("--inputs", inputs) || words.take("--threads", threads) ||
           words.take("--seconds", seconds);
  }
};

inline std::string mlp_step_name(std::int64_t batch) {
  return fmt::format("MLP step, batch {}", batch);
}

inline std::string gpt_step_name(std::int64_t layers, std::int64_t width, std::int64_t batch) {
  return fmt::format("GPT step, {} layers, width {}, batch {}", layers, width, batch);
}

struct Timed {
  double seconds = 0;  // Of a step: the median of the samples.
  double cores = 0;    // CPU time over wall time: the number of busy cores.
};

// A single process decides by its own clock.
inline double own_clock(double seconds) { return seconds; }

// Runs run.step() for `enough` seconds in samples, run.reset() before each. As in peer_inputs.py,
// which says why: samples of about a fiftieth of a second, limited steps from the first weights,
// and a minimum of samples. Processes that run together must make the same number of steps: agree()
// turns a local duration into one that all of them use.
template <class Run> Timed timed(Run& run, double enough, double (*agree)(double) = own_clock) {
  constexpr double sample_seconds = 0.02;
  constexpr std::int64_t most_steps = 100;
  constexpr std::size_t fewest_samples = 5;
  const auto sample = [&](std::int64_t n) {
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < n; ++i) run.step();
    return seconds_since(start);
  };
  run.reset();
  for (int i = 0; i < 3; ++i) run.step();
  const double fastest = agree(std::min(sample(1), sample(3) / 3));
  const auto n =
      std::clamp(static_cast<std::int64_t>(sample_seconds / fastest), std::int64_t{1}, most_steps);
  std::vector<double> all;
  double spent = 0, busy = 0;
  while (spent < enough || all.size() < fewest_samples) {
    run.reset();
    for (int i = 0; i < 3; ++i) run.step();
    const std::clock_t before = std::clock();
    const double seconds = sample(n);
    busy += static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    spent += agree(seconds);
    all.push_back(seconds / static_cast<double>(n));
  }
  return {median(all), busy / spent};
}

}  // namespace brrr::bench
