#pragma once

// The GPT step and generation in each mode, against libtorch in its own process.

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "models/generate.h"
#include "tests/bench/bench.h"
#include "tests/bench/mlp_figures.h"
#include "tests/bench/peer_gpt.h"
#include "tests/bench/report.h"

namespace brrr::bench {

class BrrrGpt : public PeerRun {
 public:
  BrrrGpt(std::int64_t batch, Way way)
      : PeerRun(gpt_learner({.vocab = gpt_sizes.vocab,
                             .block = gpt_sizes.block,
                             .layers = gpt_sizes.layers,
                             .heads = gpt_sizes.heads,
                             .width = gpt_sizes.width}),
                batches(batch), "adamw", way, {}) {
    reset();
  }
  void reset() override {
    std::size_t index = 0;
    for (const auto& [name, p] : model().named_parameters()) {
      init_gpt_parameter(index++, name, p.dim() == 2, p.data<float>(), p.numel());
    }
  }

 private:
  static Batches batches(std::int64_t batch) {
    const GptBatches data = make_gpt_batches(batch);
    Batches b;
    const auto ids = [&](const auto& v) {
      return from_blob(v.data(), {batch, gpt_sizes.block}, kInt64);
    };
    for (const auto& x : data.x) b.x.push_back(ids(x));
    for (const auto& y : data.y) b.y.push_back(ids(y));
    return b;
  }
};

inline std::string gpt_peer(std::int64_t batch, int steps, int warmup) {
  return fmt::format("--model gpt --batch {} --steps {} --warmup {}", batch, steps, warmup);
}

// Checks that all modes give the same bits, and the peer's loss and number of parameters.
inline void check_gpt(Report& report, std::int64_t batch) {
  constexpr int steps = 40;
  const float loss = check_modes(report, "gpt", steps,
                                 [&](Way way) { return std::make_unique<BrrrGpt>(batch, way); });
  const std::int64_t count = BrrrGpt(batch, Way::Eager).model().num_parameters();
  report.show("GPT, thousand parameters", static_cast<double>(count) / 1e3, "",
              fmt::format("{}", count));
  for (const json& j : run_peer(gpt_peer(batch, steps - 1, 1))) {
    const double torch_loss = j["final_loss"];
    const auto torch_count = j["parameters"].get<std::int64_t>();
    report.show("GPT, libtorch's, thousand parameters", static_cast<double>(torch_count) / 1e3, "",
                fmt::format("{}", torch_count));
    report.show(fmt::format("GPT, loss after {} steps", steps), loss, "",
                fmt::format("libtorch {:.6f}", torch_loss));
    if (torch_count != count) report.wrong("gpt: libtorch's model has another size");
    if (!(std::abs(loss - torch_loss) <= 1e-3 * std::abs(torch_loss))) {
      report.wrong(fmt::format("gpt: loss {} is not libtorch's {}", loss, torch_loss));
    }
  }
}

// libtorch runs once with brrr's tanh GELU and once with the erf form, which is faster there: a
// user may choose either, so both must be beaten. Its best of five runs counts, because a separate
// process, unlike interleaved turns, cannot average out other load on the machine.
inline void gpt_times(Report& report, std::int64_t batch) {
  std::vector<std::unique_ptr<BrrrGpt>> runs;
  Turns turns;
  std::array<int, 3> at{};
  for (std::size_t k = 0; k < ways.size(); ++k) {
    BrrrGpt& gpt = *runs.emplace_back(std::make_unique<BrrrGpt>(batch, ways[k]));
    gpt.run(8);
    at[k] = turns.add([&gpt](std::int64_t n) { gpt.run(n); }, [&gpt] { gpt.reset(); });
  }
  const std::array<const char*, 2> forms = {"tanh", "erf"};
  std::array<double, 2> torch{};
  for (int part = 0; part < 5; ++part) {
    turns.measure(9, 20.0);
    for (std::size_t f = 0; f < forms.size(); ++f) {
      for (const json& j : run_peer(gpt_peer(batch, 150, 50) + " --gelu " + forms[f])) {
        const double us = j["us_per_step_median"];
        torch[f] = torch[f] > 0 ? std::min(torch[f], us) : us;
      }
    }
  }
  const std::string name = fmt::format("GPT batch {}, ", batch);
  const std::array<const char*, 3> modes = {"eager", "graph", "frozen"};
  const std::array<double, 3> bars = {1.7, 2.5, 0};
  for (std::size_t k = 0; k < ways.size(); ++k) {
    const double us = turns.ns(at[k]) / 1e3;
    report.show(name + modes[k], us, "us");
    for (std::size_t f = 0; f < forms.size() && torch[f] > 0; ++f) {
      const std::string what =
          fmt::format("{}{} against libtorch, its {} GELU", name, modes[k], forms[f]);
      const double gain = torch[f] / us;
      report.add(what, bars[k] > 0 ? Bar::AtLeast : Bar::None, bars[k], gain, "x",
                 fmt::format("libtorch {:.0f} us", torch[f]));
    }
  }
}

// One sequence, each token sampled; the recording is made before the clock starts.
inline void gpt_generation(Report& report) {
  BrrrGpt gpt(1, Way::Eager);
  constexpr std::int64_t tokens = 256;
  std::vector<std::unique_ptr<models::Generator>> generators;
  std::array<std::vector<std::int64_t>, 2> ids;
  Turns turns;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    models::Generator& g = *generators.emplace_back(std::make_unique<models::Generator>(
        static_cast<models::GPT&>(gpt.model()),
        models::GenerateOptions{
            .tokens = tokens, .seed = 3, .mode = k == 0 ? Mode::Eager : Mode::Graph}));
    ids[k] = g({0});
    turns.each([&g] { g({0}); });
  }
  if (ids[0] != ids[1]) report.wrong("gpt: the modes generate different tokens");
  turns.measure(9, 30.0);
  for (int k = 0; k < 2; ++k) {
    report.show(fmt::format("GPT, generation, {}", k == 0 ? "eager" : "graph"),
                tokens * 1e9 / turns.ns(k), "tok/s",
                fmt::format("{:.1f} us a token", turns.ns(k) / 1e3 / tokens));
  }
  const StepStats s = generators[1]->stats();
  if (s.fallbacks > 0) report.wrong("gpt: generation fell back: " + s.last_fallback);
  if (s.recordings != 1)
    report.wrong(fmt::format("gpt: generation has {} recordings", s.recordings));
}

inline void gpt_part(Report& report) {
  constexpr std::int64_t batch = 8;
  check_gpt(report, batch);
  gpt_times(report, batch);
  report_memory(report, fmt::format("GPT batch {}, ", batch),
                [&](Way way) { return std::make_unique<BrrrGpt>(batch, way); });
  gpt_generation(report);
}

}  // namespace brrr::bench
