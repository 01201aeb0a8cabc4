#include "examples/common/roof.h"

#include <algorithm>

#include "backends/cpu/stream.h"

namespace examples {

using brrr::Tensor;

// Uses a factor near 1, so that many multiplications do not underflow.
static Tensor multiplied(const Tensor& x, int64_t times) {
  Tensor y = x * 0.999;
  for (int64_t i = 1; i < times; ++i) y = y * 0.999;
  return y;
}

// On the CPU the copy is measured immediately, right after the time it is compared with, because
// virtual machines share the memory bandwidth.
static double copy_gbs(const brrr::bench::Limits& limits, const Tensor& x) {
  const auto bytes = static_cast<size_t>(x.numel()) * sizeof(float);
  if (limits.on_gpu()) return limits.gb_per_second(2.0 * static_cast<double>(bytes));
  return brrr::cpu::stream_like(1, bytes, limits.threads > 1).gb_per_second;
}

BothModes time_both(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                    double seconds) {
  auto graph = brrr::step(f);
  for (int i = 0; i < 3; ++i) graph(x);
  BothModes t;
  if (!brrr::same_bits(graph(x), f(x))) t.complaint = "graph mode's result is not eager's";
  if (graph.stats().fallbacks > 0) t.complaint = graph.stats().last_fallback;
  const auto waited = [&](auto& call) {
    return [&] {
      const Tensor y = call(x);
      brrr::synchronize(x.device());
    };
  };
  const auto median = brrr::bench::times_in_turns({waited(f), waited(graph)}, seconds);
  t.eager = median[0], t.graph = median[1];
  return t;
}

Roofline::Roofline(const brrr::bench::Limits& limits, const Tensor& x,
                   const std::vector<int64_t>& repeats, double seconds)
    : gflops(limits.gflops() / 2) {
  std::vector<double> copies;
  for (int64_t k : repeats) {
    const auto t = time_both([k](const Tensor& v) { return multiplied(v, k); }, x, seconds);
    if (!t.complaint.empty()) complaint = fmt::format("{} multiplications: {}", k, t.complaint);
    points.push_back({k, static_cast<double>(x.numel()), t.eager, t.graph});
    copies.push_back(copy_gbs(limits, x));
  }
  gbs = brrr::bench::median(copies);
}

Knee Roofline::knee() const {
  if (points.size() < 4) return {};
  const RoofPoint &last = points.back(), &before = points[points.size() - 2];
  const double slope =
      (last.fused - before.fused) / static_cast<double>(last.repeats - before.repeats);
  std::vector<double> level;
  for (const RoofPoint& p : points) {
    if (2 * static_cast<double>(p.repeats) * slope <= points[0].fused) level.push_back(p.fused);
  }
  if (level.empty() || slope <= 0) return {};
  const auto [lo, hi] = std::minmax_element(level.begin(), level.end());
  const double variation = *hi / *lo - 1;
  return {brrr::bench::median(level) / slope, variation};
}

std::string Roofline::findings() const {
  const RoofPoint &first = points.front(), &last = points.back();
  double best = 0;
  for (const RoofPoint& p : points) best = std::max(best, p.flops() / p.fused * 1e-9);
  std::string t = fmt::format(
      "Each element of {:.0f} MB multiplied {} to {} times. Fused, {} multiplications take {:.1f} "
      "times as long as {}; eager mode, which reads and writes the tensor for each, {:.0f} times. "
      "By the limits of this machine {:.0f} multiplications an element cost nothing beside reading "
      "and writing it; the best point does {:.0f} of {:.0f} GFLOP/s.",
      first.bytes() / (2 << 20), first.repeats, last.repeats, last.repeats,
      last.fused / first.fused, first.repeats, last.eager / first.eager, free_repeats(), best,
      gflops);
  if (const Knee measured = knee(); measured.at > 0) {
    t += fmt::format(
        " The measured knee is at {:.0f}, {:+.0f} % from there; up to half of it the time varies "
        "by {:.0f} %.",
        measured.at, 100 * (measured.at / free_repeats() - 1), 100 * measured.variation);
  }
  return t;
}

std::string Roofline::note() const {
  return fmt::format(
      "Limits: half of the peak of multiply-adds, {:.0f} GFLOP/s, and a copy of as many bytes, "
      "{:.1f} GB/s. The knee, where both take the same time, is at {:.2g} FLOP a byte.",
      gflops, gbs, free_repeats() / 8);
}

Sheet Roofline::sheet() const {
  Sheet s{"roofline",
          "x * 0.999, again and again",
          {"multiplications", "FLOP/byte", "fused ms", "GFLOP/s", "GB/s", "of the limit",
           "bound by", "eager ms", "eager GFLOP/s", "eager/fused"}};
  for (const RoofPoint& p : points) {
    const bool memory = static_cast<double>(p.repeats) <= free_repeats();
    s.rows.push_back({p.repeats, Datum(fmt::format("{:.3g}", p.intensity()), p.intensity()),
                      p.fused * 1e3, p.flops() / p.fused * 1e-9, p.bytes() / p.fused * 1e-9,
                      percent(bound(p) / p.fused), memory ? "memory" : "compute", p.eager * 1e3,
                      p.flops() / p.eager * 1e-9, times(p.eager / p.fused)});
  }
  return s;
}

std::vector<Picture> Roofline::pictures() const {
  using Figure = double (*)(const RoofPoint& p, double seconds);
  const double knee = free_repeats() / 8;
  const auto draw_chart = [&](const char* name, const char* title, const char* unit,
                              Figure figure) {
    LineChart c{
        title, "FLOP per byte of the fused kernel", unit, {{"eager"}, {"fused"}, {"limit"}}};
    c.limits = 1;
    for (const RoofPoint& p : points) {
      const double seconds[] = {p.eager, p.fused, bound(p)};
      for (size_t i : {0, 1, 2}) {
        c.lines[i].points.emplace_back(p.intensity(), figure(p, seconds[i]));
      }
    }
    c.mark = knee;
    c.mark_name = fmt::format("{:.2g} FLOP/byte", knee);
    return draw(name, c);
  };
  return {draw_chart("roofline-time", "Time of a call", "ms",
                     [](const RoofPoint&, double s) { return s * 1e3; }),
          draw_chart("roofline", "Arithmetic", "GFLOP/s",
                     [](const RoofPoint& p, double s) { return p.flops() / s * 1e-9; }),
          draw_chart("roofline-traffic", "Traffic of the fused kernel", "GB/s",
                     [](const RoofPoint& p, double s) { return p.bytes() / s * 1e-9; })};
}

}  // namespace examples
