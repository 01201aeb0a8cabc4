// Costs and speeds of brrr on a GPU: host time per op, bandwidth, products, training steps in every
// mode, first use of a kernel. peer_torch.py and peer_jax.py measure the same.
#include <brrr/brrr.h>
#include <fmt/format.h>

#include <functional>

#include "core/backend.h"
#include "tests/bench/figures.h"
#include "tests/bench/steps.h"

namespace {

using namespace brrr;
using bench::Clock, bench::StepMode, bench::StepTask, bench::median, bench::seconds_since;

// Sizes for an emulated device (quick) and for a GPU (full).
struct Sizes {
  int64_t elements, rows, columns, matrix, steps, rounds;
  int64_t largest_mlp, gpt_layers, gpt_batch;
};
constexpr Sizes kFull{int64_t{64} << 20, 16384, 4096, 4096, 200, 15, 1024, 4, 16};
constexpr Sizes kQuick{4096, 8, 64, 64, 2, 3, 32, 1, 1};

constexpr StepMode kModes[] = {
    {"", Mode::Eager, false}, {", graph", Mode::Graph, false}, {", frozen", Mode::Graph, true}};

// Few enough that all launches fit into the device's queue; with more the host waits for it.
constexpr int kHostSteps = 3;

std::vector<StepTask> tasks(const Sizes& s) {
  manual_seed(7);
  std::vector<StepTask> all;
  for (int64_t batch : {32, 256, 1024}) {
    if (batch <= s.largest_mlp) all.push_back(bench::mlp_task(batch));
  }
  all.push_back(bench::gpt_task(
      {.vocab = 65, .block = 64, .layers = s.gpt_layers, .heads = 4, .width = 128}, s.gpt_batch));
  return all;
}

class Bench {
 public:
  Bench(const Sizes& s, bench::Figures& figures) : s_(s), figures_(figures) {}

  void host_cost() {
    auto report = [&](const std::string& name, bool gradient) {
      figures_.attempt(name, [&] {
        const Tensor a = rand({1}, kCUDA).set_requires_grad(gradient), b = rand({1}, kCUDA);
        note(name, timed([&] { a + b; }, 500, false) * 1e6, "us");
      });
    };
    report("host cost: add of one element", false);
    report("host cost: the same, gradient recorded", true);
  }

  // Uses kernels that nothing else here uses: with an empty BRRR_CACHE_DIR they are compiled, in
  // the next process with the same one they are read from the cache.
  void first_use() {
    const std::string name = "first use of a kernel in the process";
    figures_.attempt(name, [&] {
      const Tensor x = rand({1000}, kCUDA).to(kFloat16);
      Tensor (*const functions[])(const Tensor&) = {expm1, log1p, tanh, erf, sin};
      std::vector<double> ms;
      for (const auto f : functions) {
        const auto start = Clock::now();
        f(x);
        ms.push_back(seconds_since(start) * 1e3);
      }
      note(name, median(ms), "ms");
    });
  }

  void bandwidth() {
    const int64_t n = s_.elements;
    const double bytes = 8.0 * static_cast<double>(n);
    Tensor x, y, z, h, m, bias, g;
    figures_.attempt("tensors to read and write", [&] {
      x = rand({n}, kCUDA), y = rand({n}, kCUDA), z = empty({n}, kFloat32, kCUDA);
      h = x.to(kBFloat16), m = x.view({n / s_.columns, s_.columns});
      bias = rand({s_.columns}, kCUDA), g = ones({s_.columns}, kCUDA);
    });
    if (!g.defined()) return;
    const Backend& gpu = backend(DeviceType::CUDA);
    figures_.attempt("device to device copy", [&] {
      const auto copy = [&] { gpu.copy(z.data_ptr(), x.data_ptr(), static_cast<size_t>(4 * n)); };
      copy_ = bytes / timed(copy, 5);
      note("device to device copy", copy_ / 1e9, "GB/s");
    });
    rate("pointwise: x * 2", bytes, [&] { x * 2.0; });
    rate("pointwise: x + y", 1.5 * bytes, [&] { x + y; });
    rate("pointwise: gelu(x)", bytes, [&] { gelu(x); });
    rate("pointwise: bfloat16 h * 2", bytes / 2, [&] { h * 2.0; });
    rate("pointwise: rows plus a bias", bytes, [&] { m + bias; });
    rate("pointwise: a transposed copy", bytes, [&] { m.t().contiguous(); });
    rate("reduction: sum of all", bytes / 2, [&] { x.sum(); });
    rate("reduction: sum of columns", bytes / 2, [&] { m.sum({0}); });
    rate("rows: softmax", bytes, [&] { m.softmax(-1); });
    rate("rows: layer_norm", bytes, [&] { layer_norm(m, {s_.columns}, g, bias, 1e-5); });
  }

  void products() {
    const int64_t n = s_.matrix;
    const auto size = static_cast<double>(n);
    auto report = [&](const std::string& name, DType t, bool transposed, bool tf32) {
      figures_.attempt(name, [&] {
        const Tensor a = randn({n, n}, kCUDA).to(t), b = randn({n, n}, kCUDA).to(t);
        const Tensor right = transposed ? b.t() : b;
        set_allow_tf32(tf32);
        const double seconds = timed([&] { a.matmul(right); }, 10);
        note(name, 2.0 * size * size * size / seconds / 1e12, "TFLOP/s");
      });
      set_allow_tf32(false);
    };
    report("matmul: float32", kFloat32, false, false);
    report("matmul: float32 by TF32", kFloat32, false, true);
    report("matmul: bfloat16", kBFloat16, false, false);
    report("matmul: bfloat16, right one transposed", kBFloat16, true, false);
  }

  void steps(const std::vector<StepTask>& all) {
    for (const StepTask& task : all) {
      std::vector<float> eager;
      for (const StepMode& mode : kModes) {
        figures_.attempt(task.name + mode.suffix, [&] { train(task, mode, eager); });
      }
    }
  }

 private:
  void note(const std::string& name, double value, const char* unit) {
    figures_.note(name, value, unit);
  }

  // Seconds per f(): until its work is done, or (until_done false) until it is queued.
  double timed(const std::function<void()>& f, int64_t n, bool until_done = true) {
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) f();
    for (int64_t r = 0; r < s_.rounds; ++r) {
      synchronize();
      const auto start = Clock::now();
      for (int64_t i = 0; i < n; ++i) f();
      if (until_done) synchronize();
      all.push_back(seconds_since(start) / static_cast<double>(n));
    }
    synchronize();
    return median(all);
  }

  // Bandwidth of f, also as a share of the measured copy bandwidth, if there is one.
  void rate(const std::string& name, double bytes, const std::function<void()>& f) {
    figures_.attempt(name, [&] {
      const double reached = bytes / timed(f, 5);
      note(name, reached / 1e9, "GB/s");
      if (copy_ > 0) note(name + ", of the copy", 100 * reached / copy_, "%");
    });
  }

  // Times the step in a mode, which starts from the same weights as every mode. Its losses must be
  // bit-identical to `eager`, which the eager mode sets.
  void train(const StepTask& task, const StepMode& mode, std::vector<float>& eager) {
    bench::StepRun run(task, mode, kCUDA);
    const auto f = [&] { run.step(); };
    if (mode.mode == Mode::Eager) figures_.note_losses(task.name, eager = run.losses());
    if (run.losses() != eager) throw Error("the losses are not those of the eager mode");
    const std::string label = task.name + mode.suffix;
    note(label, timed(f, s_.steps) * 1e6, "us");
    const double host_us = timed(f, kHostSteps, false) * 1e6;
    note(label + ", host", host_us, "us");
    if (mode.mode == Mode::Eager) return;
    const auto ops = static_cast<double>(run.stats().ops_per_replay);
    note(label + ", recorded ops", ops, "");
    note(label + ", host per recorded op", host_us * 1e3 / ops, "ns");
  }

  const Sizes& s_;
  bench::Figures& figures_;
  double copy_ = 0;  // Bytes a second; 0 if not measured.
};

constexpr const char* kHelp =
    R"(usage: bench_gpu [--quick] [--first-use] [--json FILE] [--inputs FILE]
  --quick      tiny sizes, to try it out
  --first-use  only the host's cost and the first use of kernels
  --json       write the figures, after each of them; without a GPU that fails
  --inputs     first write the steps' weights and batches (safetensors), for the peers
Exit status: 0, 1 after an error or if a figure failed, 2 if the command line is wrong.
)";

struct Options {
  bool quick = false, only_first_use = false;
  std::string json, inputs;

  bool take(bench::Words& words) {
    return words.take("--quick", quick) || words.take("--first-use", only_first_use) ||
           words.take("--json", json) || words.take("--inputs", inputs);
  }
};

int run(const Options& o) {
  if (!cuda_available()) {
    fmt::print("no GPU here; nothing measured\n");
    return o.json.empty() ? 0 : 1;
  }
  const DeviceProperties p = device_properties();
  fmt::print("{} | {:.0f} GiB | {}\n", p.name, static_cast<double>(p.memory_bytes) / 0x1p30,
             p.versions);
  const Sizes& sizes = o.quick ? kQuick : kFull;
  const std::vector<StepTask> all = tasks(sizes);
  if (!o.inputs.empty()) save(o.inputs, bench::inputs_of(all));
  bench::Figures figures(o.json, {{"device", p.name}, {"versions", p.versions}});
  Bench bench(sizes, figures);
  bench.host_cost();
  bench.first_use();
  if (!o.only_first_use) {
    bench.bandwidth();
    bench.products();
    bench.steps(all);
  }
  return figures.failed() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::words_main("bench_gpu", argc, argv, kHelp, Options{}, run);
}
