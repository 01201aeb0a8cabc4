#pragma once

// The GPT step and generation in each mode, beside libtorch in a process of its own.

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

// The GPT step of the peer, with its weights and batches.
class BrrrGpt {
 public:
  using Fn = std::function<Tensor(const Tensor&, const Tensor&)>;

  BrrrGpt(std::int64_t batch, Way way)
      : model_({.vocab = gpt_sizes.vocab,
                .block = gpt_sizes.block,
                .layers = gpt_sizes.layers,
                .heads = gpt_sizes.heads,
                .width = gpt_sizes.width}),
        opt_(model_.parameters(), {.lr = adamw_lr, .weight_decay = adamw_weight_decay}),
        step_([this](const Tensor& x, const Tensor& y) { return train(x, y); },
              {.mode = way == Way::Eager ? Mode::Eager : Mode::Graph, .fuse = way != Way::Unfused}),
        frozen_(way == Way::Frozen) {
    const GptBatches data = make_gpt_batches(batch);
    for (std::size_t b = 0; b < num_batches; ++b) {
      x_.push_back(from_blob(data.x[b].data(), {batch, gpt_sizes.block}, kInt64));
      y_.push_back(from_blob(data.y[b].data(), {batch, gpt_sizes.block}, kInt64));
    }
    reset();
  }

  // Back to the first weights, so that long runs stay where gradients are ordinary numbers.
  void reset() {
    std::size_t index = 0;
    for (const auto& [name, p] : model_.named_parameters()) {
      init_gpt_parameter(index++, name, p.dim() == 2, p.data<float>(), p.numel());
    }
  }
  void run(std::int64_t steps) {
    for (std::int64_t k = 0; k < steps; ++k, ++at_) {
      const auto b = static_cast<std::size_t>(at_ % num_batches);
      loss_ = step_(x_[b], y_[b]);
      if (frozen_ && at_ == 2) step_.freeze();
    }
  }
  float loss() const { return loss_.item<float>(); }
  StepStats stats() const { return step_.stats(); }
  std::int64_t num_parameters() const { return model_.num_parameters(); }
  models::GPT& model() { return model_; }
  std::vector<float> parameters() const {
    std::vector<float> all;
    for (const Tensor& p : model_.parameters()) {
      const auto v = p.to_vector<float>();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  }

 private:
  Tensor train(const Tensor& x, const Tensor& y) {
    Tensor loss = model_.loss(x, y);
    opt_.zero_grad();
    loss.backward();
    opt_.step();
    return loss;
  }

  models::GPT model_;
  optim::AdamW opt_;
  Step<Fn> step_;
  std::vector<Tensor> x_, y_;
  Tensor loss_;
  std::int64_t at_ = 0;
  bool frozen_;
};

inline std::string gpt_peer(std::int64_t batch, int steps, int warmup) {
  return fmt::format("--batch {} --steps {} --warmup {}", batch, steps, warmup);
}

// The same steps in each mode: the same bits; and the peer's loss and number of parameters.
inline void check_gpt(Report& report, std::int64_t batch) {
  constexpr int steps = 40;
  std::vector<std::vector<float>> finals;
  float loss = 0;
  std::int64_t count = 0;
  for (const Way way : ways) {
    BrrrGpt gpt(batch, way);
    gpt.run(steps);
    finals.push_back(gpt.parameters());
    loss = gpt.loss();
    count = gpt.num_parameters();
    if (gpt.stats().fallbacks > 0) report.wrong("gpt: fallback: " + gpt.stats().last_fallback);
  }
  const auto differs = [&](std::size_t k) {
    return !same_bits(tensor(finals[0]), tensor(finals[k]));
  };
  if (differs(1) || differs(2)) report.wrong("gpt: final parameters of the modes differ");
  report.show("GPT, thousand parameters", static_cast<double>(count) / 1e3, "",
              fmt::format("{}", count));
  for (const json& j : run_peer(gpt_peer(batch, steps - 1, 1), "peer_torch_gpt")) {
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

// libtorch computes brrr's GELU in one contest and in the other the erf form, which is the faster
// one there: a user may choose either, so both must be beaten. Its best run of five counts: unlike
// turns, a process of its own does not dodge what else the machine does.
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
      const std::string arguments = gpt_peer(batch, 150, 50) + " --gelu " + forms[f];
      for (const json& j : run_peer(arguments, "peer_torch_gpt")) {
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

inline void gpt_memory(Report& report, std::int64_t batch) {
  std::array<double, 2> peak{};
  StepStats stats;
  for (const Way way : {Way::Eager, Way::Graph}) {
    BrrrGpt gpt(batch, way);
    peak[way == Way::Graph] = peak_kilobytes([&gpt](int n) { gpt.run(n); });
    stats = gpt.stats();
  }
  const std::string name = fmt::format("GPT batch {}, ", batch);
  const auto arena = static_cast<double>(stats.arena_bytes);
  report.at_most(name + "arena to lower bound", 1.1,
                 arena / static_cast<double>(stats.lower_bound_bytes), "x",
                 fmt::format("{:.1f} KB", arena / 1e3));
  report.at_most(name + "graph's peak to eager's", 1.0, peak[1] / peak[0], "x",
                 fmt::format("{:.1f} and {:.1f} KB, gradients included", peak[1], peak[0]));
}

// One sequence, each token drawn; the recording is made before the clock starts.
inline void gpt_generation(Report& report) {
  BrrrGpt gpt(1, Way::Eager);
  constexpr std::int64_t tokens = 256;
  std::vector<std::unique_ptr<models::Generator>> generators;
  std::array<std::vector<std::int64_t>, 2> ids;
  Turns turns;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    models::Generator& g = *generators.emplace_back(std::make_unique<models::Generator>(
        gpt.model(), models::GenerateOptions{
                         .tokens = tokens, .seed = 3, .mode = k == 0 ? Mode::Eager : Mode::Graph}));
    ids[k] = g({0});
    turns.add([&g](std::int64_t n) {
      while (n-- > 0) g({0});
    });
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
  gpt_memory(report, batch);
  gpt_generation(report);
}

}  // namespace brrr::bench
