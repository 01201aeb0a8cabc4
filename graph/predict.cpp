// Predicts the time of a step in graph mode from its eager profile and its recording.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "autograd/autograd.h"
#include "core/context.h"
#include "core/figures.h"
#include "graph/diagnose.h"
#include "graph/plan.h"
#include "graph/watch.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::graph {

// Nanoseconds per call of 20 series of `calls` calls, ascending.
static std::vector<double> series_ns(Device device, int calls, const std::function<void()>& call) {
  constexpr size_t series = 20;
  std::vector<double> all;
  while (all.size() < series) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    synchronize(device);
    all.push_back(1e9 * seconds_since(begin) / calls);
  }
  std::sort(all.begin(), all.end());
  return all;
}

// The ratio of a generated kernel's time now to that of a copy of as many bytes when the limits
// were measured: a shared machine is not always as fast.
static double stream_excess(Device device) {
  constexpr int64_t n = 1 << 20;
  const Tensor x = ones({n}, kFloat32, device), y = ones({n}, kFloat32, device);
  auto fused = step([](const Tensor& a, const Tensor& b) { return a * b + a; });
  for (int i = 0; i < 3; ++i) fused(x, y);
  const double bytes = 3.0 * 4 * n, copied_ns = bytes / device_limits(device).gb_per_second(bytes);
  const std::vector<double> ns = series_ns(device, 1, [&] { fused(x, y); });
  return std::max(1.0, ns[ns.size() / 2] / copied_ns);
}

static LaunchCosts measure_launches(Device device) {
  constexpr int forward = 32;
  const Tensor x = ones({1}, kFloat32, device), one = ones({1}, kFloat32, device);
  const auto chain = [=](Tensor y) {
    for (int i = 0; i < forward; ++i) y = y * one;
    return y;
  };
  const Tensor leaf = ones({1}, kFloat32, device);
  leaf.set_requires_grad(true);
  // A training step over one element. It captures its tensors, so that it can be frozen.
  const auto small = [=](const Tensor&) {
    const Tensor y = chain(leaf);
    return std::pair(y.detach(), grad({y}, {leaf})[0]);
  };
  const auto plain = [=](const Tensor&) { return chain(x); };
  const StepOptions unfused{.fuse = false};
  auto recorded = step(small, unfused), frozen = step(small, unfused);
  auto plain_recorded = step(plain, unfused), plain_frozen = step(plain, unfused);
  auto nothing = step([](const Tensor&) {});
  for (int i = 0; i < 3; ++i) {
    recorded(one), frozen(one), plain_recorded(one), plain_frozen(one), nothing(one);
  }
  frozen.freeze();
  plain_frozen.freeze();
  const auto ops = static_cast<double>(recorded.stats().ops_per_replay);
  const auto of = [&](auto& f) { return series_ns(device, 20, [&] { f(one); })[0]; };
  const double empty = of(nothing), replay = of(frozen), plain_replay = of(plain_frozen);
  return {.eager_ns = of(small) / ops,
          .match_ns = std::max(0.0, of(recorded) - replay) / ops,
          .graph_ns = std::max(0.0, replay - empty) / ops,
          .step_ns = empty,
          .plain_eager_ns = of(plain) / forward,
          .plain_match_ns = std::max(0.0, of(plain_recorded) - plain_replay) / forward};
}

// The split of one of the row's calls if it ran at the device's limits.
static TimeSplit at_limits(const ProfileRow& r, const DeviceLimits& limits) {
  constexpr double not_fused = 2;  // The peak counts FMAs; outside products, few ops form one.
  const auto calls = static_cast<double>(r.calls);
  return split_time(1e12, r.flops / calls * not_fused, r.bytes / calls, limits, r.dtype);
}

// The index of a row of the same op, module and bytes per call; rows.size() if there is none.
static size_t find_same_kernel(const std::vector<ProfileRow>& rows, const ProfileRow& r) {
  constexpr double close = 0.01;
  const double bytes = r.bytes / static_cast<double>(r.calls);
  const auto at = std::ranges::find_if(rows, [&](const ProfileRow& e) {
    return e.op == r.op && e.module == r.module && e.calls > 0 &&
           std::abs(e.bytes / static_cast<double>(e.calls) - bytes) <= close * bytes;
  });
  return static_cast<size_t>(at - rows.begin());
}

double predict_graph_us(const std::vector<ProfileRow>& eager, double between_us,
                        const std::vector<ProfileRow>& graph, const StepStats& recorded,
                        Device device) {
  constexpr double most_dispatches = 8;  // Large operands and cold caches make dispatch slower.
  // Measured now, like stream_excess(), since a shared machine is not always as fast.
  const LaunchCosts costs = launch_costs(device, true);
  const DeviceLimits limits = device_limits(device);
  const auto ops = static_cast<double>(std::max<uint64_t>(1, recorded.ops_per_replay));
  // Matching an op costs a share of its eager host time, interpolated linearly between ops with and
  // without a gradient. Time beyond most_dispatches per op is the function's own and stays.
  const double more = std::max(1.0, costs.eager_ns - costs.plain_eager_ns),
               share = (costs.match_ns - costs.plain_match_ns) / more, all = between_us * 1e3,
               of_one = std::min(all / ops, most_dispatches * costs.eager_ns),
               match = costs.plain_match_ns + share * (of_one - costs.plain_eager_ns);
  const double host_us = 1e-3 * (costs.step_ns + ops * std::max(0.0, match) + all - ops * of_one);
  const double excess = stream_excess(device);
  double same_us = 0, least_us = 0;
  std::vector<bool> replaced(eager.size(), true);
  for (const ProfileRow& r : graph) {
    if (r.calls == 0) continue;
    const auto calls = static_cast<double>(r.calls);
    same_us += calls * 1e-3 * costs.graph_ns;
    if (const size_t at = find_same_kernel(eager, r); at < replaced.size()) {
      replaced[at] = false;
      same_us += eager[at].time.us * calls / static_cast<double>(eager[at].calls);
    } else {
      const TimeSplit t = at_limits(r, limits);
      least_us += calls * (t.compute_us + t.memory_us) * excess;
    }
  }
  double beyond_us = 0, replaced_us = 0;
  for (size_t k = 0; k < replaced.size(); ++k) {
    const ProfileRow& r = eager[k];
    if (!replaced[k] || r.calls == 0) continue;
    replaced_us += r.time.us;
    const double streams_us =
        static_cast<double>(r.calls) * at_limits(r, limits).memory_us * excess;
    if (r.time.us > 2 * streams_us) beyond_us += r.time.us - streams_us;
  }
  const double device_us = same_us + std::min(least_us + beyond_us / 2, replaced_us);
  // A GPU overlaps with the host.
  return device.type == DeviceType::CPU ? host_us + device_us : std::max(host_us, device_us);
}

}  // namespace brrr::graph

namespace brrr {

LaunchCosts launch_costs(Device device, bool anew) {
  using Figures = std::array<double, sizeof(LaunchCosts) / sizeof(double)>;
  const PlainScope plain;
  context.grad_enabled = true;
  const DeviceProperties p = device_properties(device);
  const auto measure = [&](Keep& keep) {
    const CoreWatch watch;
    const auto all = std::bit_cast<Figures>(graph::measure_launches(device));
    if (device == kCPU && !watch.had_core()) keep = Keep::InProcess;
    return std::vector<double>(all.begin(), all.end());
  };
  const std::string where = name(device), build = build_stamp();
  const std::vector<std::string_view> of{"brrr-launches-1", where, p.name, p.versions, build};
  std::vector<double> figures = cached_figures(of, anew, measure);
  Figures all{};
  if (figures.size() != all.size()) figures = cached_figures(of, true, measure);
  std::ranges::copy(figures, all.begin());
  return std::bit_cast<LaunchCosts>(all);
}

}  // namespace brrr
