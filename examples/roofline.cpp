// The experiment of "Making Deep Learning Go Brrrr From First Principles": the same tensor is
// multiplied again and again. In one fused kernel it is read and written once, so more repetitions
// are more arithmetic per byte: free while memory bounds the kernel, paid for once arithmetic does.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/check.h"
#include "tests/bench/measure/output.h"
#include "tests/bench/measure/machine.h"
#include "examples/common/roof.h"
#include "examples/common/options.h"

using brrr::Tensor;
using namespace brrr::bench;
using namespace examples;

namespace {

struct Options : CommandLine {
  std::string device = "cpu", json, plot;
  std::vector<int64_t> repeats = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  int64_t mb = 0;
  double seconds = 0.3;

  Options()
      : CommandLine(
            "Multiplies a tensor more and more often in one kernel, and shows where memory "
            "stops being what bounds it.",
            "roofline") {
    threads = 1;
    plain("--device", device, "cpu or cuda [cpu]", one_of({"cpu", "cuda"}));
    plain("--repeats", repeats, "multiplications of each element [1,2,4,...,256]", whole_number(1));
    plain("--mb", mb, "size of the tensor; beyond every cache, to measure memory [64; cuda: 512]",
          whole_number(1));
    plain("--threads", threads, "CPU threads [1]", whole_number(1));
    plain("--seconds", seconds, "for each mode and number of multiplications [0.3]",
          real_number(0.01, 1000));
    plain("--json", json, "write all figures to this file", output_file());
    plain("--plot", plot, "draw time, FLOP/s and bandwidth over FLOP per byte (SVG, needs gnuplot)",
          output_file());
  }
};

/// What the machine can do, as measured in this run.
struct Roof {
  double gbs = 0;     ///< The tensor copied, in turns with the points.
  double gflops = 0;  ///< Multiplications; a fused multiply-add counts as two elsewhere.
  /// Multiplications for each element that memory leaves time for.
  double free_repeats() const { return gflops / gbs * 2 * sizeof(float); }
};

struct Point {
  int64_t repeats = 0;
  double elements = 0;
  double fused = 0, eager = 0;  ///< Seconds of one call, medians.
  double flops() const { return static_cast<double>(repeats) * elements; }
  /// One kernel reads and writes every element once; eager mode's kernels do so one after the
  /// other.
  double bytes() const { return 2 * sizeof(float) * elements; }
  double intensity() const { return flops() / bytes(); }
  double bound(const Roof& r) const { return std::max(bytes() / r.gbs, flops() / r.gflops) * 1e-9; }
};

// In turns, so that what disturbs the machine disturbs both. Throws if graph mode's result is not
// eager's, bit for bit, or did not come from its kernel.
Point measure(const Tensor& x, int64_t repeats, double seconds) {
  auto graph = brrr::step([repeats](const Tensor& t) { return multiplied(t, repeats); });
  const std::function<Tensor()> fused = [&] { return graph(x); };
  const std::function<Tensor()> eager = [&] { return multiplied(x, repeats); };
  for (int i = 0; i < 3; ++i) fused();
  BRRR_CHECK(same_bits(fused(), eager()), "{} repeats: graph mode's result is not eager's",
             repeats);
  if (graph.stats().fallbacks > 0) throw brrr::Error(graph.stats().last_fallback);
  const auto wait = [&](const std::function<Tensor()>& f) {
    const auto begin = Clock::now();
    const Tensor y = f();
    brrr::synchronize(x.device());
    return seconds_since(begin);
  };
  constexpr int least = 5, most = 1001;
  std::vector<double> fused_s, eager_s;
  double spent = 0;
  while (fused_s.size() < least || (spent < 2 * seconds && fused_s.size() < most)) {
    fused_s.push_back(wait(fused));
    eager_s.push_back(wait(eager));
    spent += fused_s.back() + eager_s.back();
  }
  return {repeats, static_cast<double>(x.numel()), median(fused_s), median(eager_s)};
}

std::string table_text(const std::vector<Point>& points, const Roof& roof) {
  Table t({"repeats", "FLOP/byte", "fused ms", "GFLOP/s", "GB/s", "of the limit", "bound by",
           "eager ms", "GFLOP/s", "eager/fused"});
  for (const Point& p : points) {
    const bool memory = static_cast<double>(p.repeats) <= roof.free_repeats();
    t.row({fmt::format("{}", p.repeats), fmt::format("{:.3g}", p.intensity()),
           three_figures(p.fused * 1e3), three_figures(p.flops() / p.fused * 1e-9),
           three_figures(p.bytes() / p.fused * 1e-9),
           fmt::format("{:.0f} %", 100 * p.bound(roof) / p.fused), memory ? "memory" : "compute",
           three_figures(p.eager * 1e3), three_figures(p.flops() / p.eager * 1e-9),
           fmt::format("{:.2f}x", p.eager / p.fused)});
  }
  return t.text();
}

std::string knee_text(const std::vector<Point>& points, const Roof& roof) {
  std::vector<std::pair<double, double>> seconds;
  for (const Point& p : points) seconds.emplace_back(p.repeats, p.fused);
  const Knee knee = find_knee(seconds);
  if (knee.at <= 0) return "";
  return fmt::format(
      "The measured knee is at {:.0f} multiplications, {:+.0f} % from where the limits put it; "
      "below its half\nthe time varies by {:.0f} %.\n",
      knee.at, 100 * (knee.at / roof.free_repeats() - 1), 100 * knee.uneven);
}

std::string notes_text(const std::vector<Point>& points, const Roof& roof) {
  const Point &first = points.front(), &last = points.back();
  return fmt::format(
             "limits, measured in this run: copying the tensor {:.0f} GB/s; multiplications {:.0f} "
             "GFLOP/s,\nhalf of the peak of fused multiply-adds. Up to {:.0f} multiplications an "
             "element "
             "cost no time\nbeside reading and writing it; beyond that the arithmetic is what is "
             "paid "
             "for.\n"
             "Eager mode reads and writes the tensor for each: {} take {:.1f} times as long as {}; "
             "fused, {:.1f} times.\n",
             roof.gbs, roof.gflops, roof.free_repeats(), last.repeats, last.eager / first.eager,
             first.repeats, last.fused / first.fused) +
         knee_text(points, roof);
}

nlohmann::json json_of(const std::vector<Point>& points, const Roof& roof, const Limits& limits,
                       const Tensor& x) {
  Json j = object("device cpu threads tensor_bytes copy_gb_per_s multiply_gflop_per_s",
                  brrr::name(limits.device), limits.cpu, limits.threads,
                  static_cast<double>(x.numel()) * sizeof(float), roof.gbs, roof.gflops);
  j["machine"] = header_text({limits});
  if (limits.on_gpu()) j["gpu"] = limits.gpu.name;
  for (const Point& p : points) {
    j["points"].push_back(object("repeats flop_per_byte fused_ms eager_ms limit_ms", p.repeats,
                                 p.intensity(), p.fused * 1e3, p.eager * 1e3, p.bound(roof) * 1e3));
  }
  return j;  // In the order of the names.
}

void draw(const std::vector<Point>& points, const Roof& roof, const Limits& limits,
          const std::string& path) {
  using Figure = std::function<double(const Point&, double seconds)>;
  const auto panel = [&](const char* title, const char* unit, const Figure& figure) {
    Panel panel{title,
                "FLOP per byte of the fused kernel",
                unit,
                {{"fused", {}}, {"eager", {}}, {"limit", {}}}};
    for (const Point& p : points) {
      const double seconds[] = {p.fused, p.eager, p.bound(roof)};
      for (size_t i = 0; i < 3; ++i) {
        panel.lines[i].points.emplace_back(p.intensity(), figure(p, seconds[i]));
      }
    }
    return panel;
  };
  Panel traffic = panel("traffic of the fused kernel", "GB/s",
                        [](const Point& p, double s) { return p.bytes() / s * 1e-9; });
  traffic.falls = true;
  plot_svg(path, fmt::format("x * 0.999, again and again, {}", limits.processor()),
           {panel("runtime", "ms", [](const Point&, double s) { return s * 1e3; }),
            panel("arithmetic", "GFLOP/s",
                  [](const Point& p, double s) { return p.flops() / s * 1e-9; }),
            traffic},
           3);
}

int run(const Options& o) {
  const brrr::Device device = device_of(o.device);
  const int64_t mb = o.mb ? o.mb : device == brrr::kCPU ? 64 : 512;
  const Limits limits = measure_limits({device}).front();
  const Tensor x = brrr::randn({(mb << 20) / static_cast<int64_t>(sizeof(float))}, device);
  fmt::print("{}\nA float32 tensor of {} MB on {}, multiplied, {} thread(s); medians\n\n",
             header_text({limits}), mb, brrr::name(device), o.threads);
  std::fflush(stdout);
  std::vector<Point> points;
  std::vector<double> copies;
  for (int64_t k : o.repeats) {
    points.push_back(measure(x, k, o.seconds));
    copies.push_back(copy_gbs(limits, x));
  }
  const Roof roof{median(copies), limits.gflops() / 2};
  fmt::print("{}\n{}", table_text(points, roof), notes_text(points, roof));
  if (!o.json.empty()) write_file(o.json, json_of(points, roof, limits, x).dump(2) + "\n");
  if (!o.plot.empty()) draw(points, roof, limits, o.plot);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return o.run(argc, argv, [&] {
    std::sort(o.repeats.begin(), o.repeats.end());
    o.repeats.erase(std::unique(o.repeats.begin(), o.repeats.end()), o.repeats.end());
    return run(o);
  });
}
