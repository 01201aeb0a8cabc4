// Forward values that backward needs: kept in memory, or rematerialised.
#include <algorithm>

#include "examples/lab/lab.h"

namespace examples::lab {

namespace {

// One way to run a step, and its measurements.
struct WayOfKeeping {
  std::string name;
  std::function<void()> call;
  std::function<brrr::StepStats()> stats;
  std::function<std::vector<Tensor>()> results;  // After all calls so far.
  double seconds = 0, bytes = 0;                 // Per call; the bytes that its kernels move.
};

// Calls make(options), which returns a call, its stats and its results, for each way.
template <class Make> std::vector<WayOfKeeping> ways_of_keeping(const Make& make) {
  const std::pair<const char*, brrr::StepOptions> ways[] = {
      {"kept", {.rematerialise = false}},
      {"recomputed, fewer bytes", {.rematerialise = true}},
      {"half the memory", {.memory_budget = 0.5}}};
  std::vector<WayOfKeeping> all;
  for (const auto& [name, options] : ways) {
    auto [call, stats, results] = make(options);
    all.push_back({name, call, stats, results});
  }
  return all;
}

// A matrix product, a chain of which backward needs every value, and another matrix product.
std::vector<WayOfKeeping> keep_chain(const Lab& lab) {
  const int64_t rows = lab.quick ? 64 : 4096, width = lab.quick ? 64 : 512;
  const Tensor x = brrr::randn({rows, width}), v = brrr::randn({width, width});
  const Tensor w = brrr::randn({width, width}) * 0.02;
  w.set_requires_grad();
  const auto fn = [=](const Tensor& t) {
    Tensor y = matmul(t, w);
    for (int i = 0; i < 4; ++i) y = y * y * 0.1 + y;
    const Tensor loss = mean(matmul(y, v));
    return std::pair(loss.detach(), brrr::grad({loss}, {w})[0]);
  };
  return ways_of_keeping([&](const brrr::StepOptions& options) {
    auto step = std::make_shared<brrr::Step<decltype(fn)>>(fn, options);
    auto result = std::make_shared<Tensor>();
    return std::tuple([=] { *result = std::get<1>((*step)(x)); }, [=] { return step->stats(); },
                      [=] { return std::vector{*result}; });
  });
}

std::vector<WayOfKeeping> keep_gpt(const Lab& lab) {
  const Task task = tasks("gpt").front();
  const auto batches = std::make_shared<Batches>(task.batches(lab.quick ? 1 : 64));
  return ways_of_keeping([&](const brrr::StepOptions& options) {
    brrr::manual_seed(42);
    auto trainer = std::make_shared<Trainer>(task.learner(), *batches, "adamw", options);
    return std::tuple([=, at = int64_t{0}]() mutable { trainer->step(at++); },
                      [=] { return trainer->stats(); },
                      [trainer, batches] { return trainer->parameters(); });
  });
}

// Times all ways alternately; all must have the results of the first.
void measure_keeping(Lab& lab, const char* model, std::vector<WayOfKeeping>& all) {
  constexpr int warm_up = 5;
  std::vector<std::function<void()>> calls;
  for (WayOfKeeping& w : all) {
    for (int i = 0; i < warm_up; ++i) w.call();
    const brrr::Profile profile;
    w.call();
    for (const brrr::ProfileRow& row : profile.kinds()) w.bytes += row.bytes;
    calls.push_back([&w] { w.call(); });
  }
  const std::vector<double> t = times_in_turns(calls, lab.seconds);
  const std::vector<Tensor> kept = all[0].results();
  for (size_t k = 0; k < all.size(); ++k) {
    all[k].seconds = t[k];
    const std::string what = fmt::format("rematerialisation of a {}, {}", model, all[k].name);
    const brrr::StepStats stats = all[k].stats();
    if (stats.fallbacks > 0) lab.complain(what, stats.last_fallback);
    if (!same_bits(all[k].results(), kept)) {
      lab.complain(what, "its results are not those with all values kept");
    }
  }
}

Sheet keeping_sheet(const char* file, const std::string& title,
                    const std::vector<WayOfKeeping>& all) {
  Sheet s{file,
          title,
          {"values of forward", "ms", "of kept", "MB moved", "temporaries, MB", "recomputed",
           "kernels"}};
  for (const WayOfKeeping& w : all) {
    const brrr::StepStats t = w.stats();
    s.rows.push_back({w.name, w.seconds * 1e3, times(w.seconds / all[0].seconds), w.bytes * 1e-6,
                      static_cast<double>(t.arena_bytes) * 1e-6,
                      static_cast<int64_t>(t.rematerialised),
                      static_cast<int64_t>(t.kernels_per_replay)});
  }
  return s;
}

}  // namespace

Section rematerialisation(Lab& lab) {
  std::vector<WayOfKeeping> chain = keep_chain(lab), gpt = keep_gpt(lab);
  measure_keeping(lab, "chain", chain);
  measure_keeping(lab, "GPT", gpt);
  Section s{.title = "Compute it again, or keep it?"};
  const auto percent_of = [](const WayOfKeeping& a, const WayOfKeeping& b) {
    return 100 * static_cast<double>(a.stats().arena_bytes) /
           static_cast<double>(std::max<size_t>(1, b.stats().arena_bytes));
  };
  s.findings = {fmt::format(
      "A chain between two products, whose every value backward needs: recomputed there, it moves "
      "{:.0f} instead of {:.0f} MB and takes {:.2f} times as long as kept, with {:.0f} % of the "
      "temporary memory. A GPT's step in {:.0f} % of its memory takes {:.2f} times as long. All "
      "with the same results, bit for bit.",
      chain[1].bytes * 1e-6, chain[0].bytes * 1e-6, chain[1].seconds / chain[0].seconds,
      percent_of(chain[1], chain[0]), percent_of(gpt[2], gpt[0]), gpt[2].seconds / gpt[0].seconds)};
  s.sheets = {keeping_sheet("rematerialisation-chain",
                            "a chain of 12 operations between two products", chain),
              keeping_sheet("rematerialisation-gpt", tasks("gpt").front().name + ", AdamW", gpt)};
  BarChart time{.title = "Time of a step",
                .x_label = "times as long as with all kept",
                .parts = {{"time", kGraph}},
                .mark = 1,
                .mark_name = "all kept"};
  BarChart memory{.title = "Temporary memory of a step",
                  .x_label = "% of all kept",
                  .parts = {{"memory", kMemory}},
                  .most = 100};
  for (const auto& [model, all] : {std::pair{"chain", &chain}, {"GPT", &gpt}}) {
    for (const WayOfKeeping& w : *all) {
      const std::string label = fmt::format("{}, {}", model, w.name);
      const double t = w.seconds / (*all)[0].seconds;
      time.bars.push_back({label, {t}, times(t).text});
      memory.bars.push_back(
          {label,
           {percent_of(w, (*all)[0])},
           fmt::format("{:.1f} MB", static_cast<double>(w.stats().arena_bytes) * 1e-6)});
    }
  }
  s.pictures = {draw("rematerialisation-time", time), draw("rematerialisation-memory", memory)};
  s.note =
      "StepOptions::rematerialise and memory_budget, in turns. A value is recomputed in the kernel "
      "that uses it where that moves fewer bytes; under a budget those go that cost least for "
      "their bytes, products last.";
  return s;
}

}  // namespace examples::lab
