// Finds where a kernel turns from memory-bound to compute-bound: see examples/common/roof.h.
#include <brrr/brrr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/check.h"
#include "core/text.h"
#include "examples/common/options.h"
#include "examples/common/roof.h"

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
    plain("--repeats", repeats, "multiplications of each element [1,2,4,...,256]",
          whole_number(1, 4096));
    plain("--mb", mb, "size of the tensor; beyond every cache, to measure memory [64; cuda: 512]",
          whole_number(1, 1 << 30));
    plain("--threads", threads, "CPU threads [1]", thread_count());
    plain("--seconds", seconds, "for each mode and number of multiplications [0.3]",
          real_number(0.01, 1000));
    add_output("--json", json, "write all figures to this file");
    add_output("--plot", plot, "draw time, FLOP/s and bandwidth over FLOP per byte (SVG)");
  }
};

Json json_of(const Roofline& r, const Limits& limits) {
  Json j = object("device cpu threads tensor_bytes copy_gb_per_s multiply_gflop_per_s machine",
                  brrr::name(limits.device), limits.cpu, limits.threads,
                  r.points.front().bytes() / 2, r.gbs, r.gflops, header_text({limits}));
  if (limits.on_gpu()) j["gpu"] = limits.gpu.name;
  for (const RoofPoint& p : r.points) {
    j["points"].push_back(object("repeats flop_per_byte fused_ms eager_ms limit_ms", p.repeats,
                                 p.intensity(), p.fused * 1e3, p.eager * 1e3, r.bound(p) * 1e3));
  }
  return j;
}

int run(const Options& o) {
  const brrr::Device device = device_of(o.device);
  const int64_t mb = o.mb ? o.mb : device == brrr::kCPU ? 64 : 512;
  const Limits limits = measure_limits({device}).front();
  const brrr::Tensor x = brrr::randn({(mb << 20) / static_cast<int64_t>(sizeof(float))}, device);
  fmt::print("{}\nA float32 tensor of {} MB on {}, multiplied, {} thread(s); medians\n\n",
             header_text({limits}), mb, brrr::name(device), o.threads);
  std::fflush(stdout);
  const Roofline r(limits, x, o.repeats, o.seconds);
  BRRR_CHECK(r.complaint.empty(), "{}", r.complaint);
  fmt::print("{}", r.sheet().text());
  for (const std::string& text : {r.findings(), r.note()}) {
    fmt::print("\n{}\n", fmt::join(brrr::wrapped(text, 90), "\n"));
  }
  if (!o.json.empty()) write_file(o.json, json_of(r, limits).dump(2) + "\n");
  if (!o.plot.empty()) write_file(o.plot, svg_file(r.pictures()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return o.run(argc, argv, [&] {
    o.repeats = distinct(o.repeats);
    return run(o);
  });
}
