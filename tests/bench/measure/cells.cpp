#include "tests/bench/measure/cells.h"

#include <fmt/format.h>

#include "core/figures.h"

namespace brrr::bench {

namespace {

using Trainers = std::vector<std::unique_ptr<Trainer>>;

constexpr int kWarmUp = 16, kMostRounds = 250, kLeastRounds = 16;
// Shorter than a scheduler's time slice: most series run undisturbed.
constexpr double kSeriesUs = 1000;
// Long enough on a GPU that waiting for the last step is negligible.
constexpr double kDeviceSeriesUs = 10000;

double us_since(Clock::time_point t) { return 1e6 * seconds_since(t); }

// Returns when all work of step i is done, on any device.
void wait_for(Trainer& t, int64_t i) { synchronize(t.scheduled_step(i).device()); }

std::string find_complaint(const Trainers& trainers) {
  for (size_t m = 0; m < trainers.size(); ++m) {
    const StepStats s = trainers[m]->stats();
    const char* way = name_of(kWays[m]);
    // A device may need fusion to replay a step; that cell then has no figures, the others count.
    if (s.fallbacks > 0 && kWays[m] != Way::Unfused) {
      return fmt::format("{}: {} steps fell back to the reference walker: {}", way, s.fallbacks,
                         s.last_fallback);
    }
    if (!same_bits(trainers[m]->parameters(), trainers[0]->parameters())) {
      return fmt::format("{}: the final parameters are not eager's, bit for bit", way);
    }
  }
  return "";
}

}  // namespace

Cells measure(const MakeTrainer& make, double seconds) {
  Trainers trainers;
  for (Way way : kWays) {
    trainers.push_back(make(way));
    for (int i = 0; i < kWarmUp; ++i) {
      if (way == Way::Frozen && i == kWarmUp / 2) trainers.back()->freeze();
      wait_for(*trainers.back(), i);
    }
  }
  int64_t at = kWarmUp;
  // Half of the time for each kind of figure. All modes make as many steps as eager, so that the
  // parameters compared afterwards are those of the timed steps.
  double eager_us = 1e9;
  constexpr int trial = 8;
  for (int i = 0; i < trial; ++i) {
    const auto begin = Clock::now();
    wait_for(*trainers[0], at + i);
    eager_us = std::min(eager_us, us_since(begin));
  }
  for (size_t m = 1; m < trainers.size(); ++m) {
    for (int i = 0; i < trial; ++i) trainers[m]->scheduled_step(at + i);
  }
  at += trial;
  const bool on_cpu = trainers[0]->parameters()[0].device() == kCPU;
  const double series_us = on_cpu ? kSeriesUs : kDeviceSeriesUs;
  const auto series = std::max<int64_t>(2, static_cast<int64_t>(series_us / eager_us));
  const int rounds =
      std::clamp(static_cast<int>(seconds * 1e6 / (2 * static_cast<double>(series) * eager_us)),
                 kLeastRounds, kMostRounds);

  std::vector<std::vector<double>> queued(trainers.size()), latency(trainers.size());
  const CoreWatch watch;
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < trainers.size(); ++turn) {
      const size_t m = (turn + static_cast<size_t>(round)) % trainers.size();
      Trainer& t = *trainers[m];
      auto start = Clock::now();
      for (int64_t i = 0; i + 1 < series; ++i) t.scheduled_step(at + i);
      wait_for(t, at + series - 1);
      queued[m].push_back(us_since(start) / static_cast<double>(series));
      for (int64_t i = series; i < 2 * series; ++i) {
        start = Clock::now();
        wait_for(t, at + i);
        latency[m].push_back(us_since(start));
      }
    }
    at += 2 * series;
  }
  Cells result;
  result.steps = at;
  result.share = watch.share();
  for (size_t m = 0; m < trainers.size(); ++m) {
    result.cells.push_back({quantiles(queued[m]), quantiles(latency[m]), trainers[m]->stats()});
  }
  result.complaint = find_complaint(trainers);
  return result;
}

OneTime measure_one_time(const MakeTrainer& make) {
  const auto trainer = make(Way::Graph);
  const auto begin = Clock::now();
  for (int i = 0; i < 2; ++i) wait_for(*trainer, i);
  const double wall = us_since(begin) * 1e-3;
  const StepStats s = trainer->stats();
  return {s.record_seconds * 1e3, s.fuse_seconds * 1e3,    s.plan_seconds * 1e3,
          s.build_seconds * 1e3,  s.capture_seconds * 1e3, wall,
          s.build_cached};
}

}  // namespace brrr::bench
