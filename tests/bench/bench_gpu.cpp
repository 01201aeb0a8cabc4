// What brrr costs and reaches on a GPU: host time per op, bandwidth, products, training steps in
// every mode, first use of a kernel. peer_torch_gpu.py and peer_jax_gpu.py measure the same.
#include <brrr/brrr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/backend.h"

namespace {

using namespace brrr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

// Sizes small enough for an emulated device, or those that count.
struct Sizes {
  int64_t elements, rows, columns, matrix, steps, rounds;
  int64_t largest_mlp, gpt_layers, gpt_batch;
};
constexpr Sizes kFull{int64_t{64} << 20, 16384, 4096, 4096, 200, 15, 1024, 4, 16};
constexpr Sizes kQuick{4096, 8, 64, 64, 2, 3, 32, 1, 1};

struct StepMode {
  const char* suffix;
  Mode mode;
  bool frozen;
};
constexpr StepMode kModes[] = {
    {"", Mode::Eager, false}, {", graph", Mode::Graph, false}, {", frozen", Mode::Graph, true}};

// Steps whose losses are compared, here between the modes and by results.py between programs.
constexpr int kLosses = 10;
// So few that their launches fit into the device's queue: beyond it the host waits for the device.
constexpr int kHostSteps = 3;

class Bench {
 public:
  explicit Bench(const Sizes& s) : s_(s) {}

  /// All of it, or only what the first use of kernels costs.
  nlohmann::json run(bool only_first_use) {
    host_cost();
    first_use();
    if (only_first_use) return std::move(out_);
    bandwidth();
    products();
    steps();
    return std::move(out_);
  }

  /// By the step's name; empty before run().
  const nlohmann::json& losses() const { return losses_; }
  const StateDict& inputs() const { return inputs_; }

 private:
  void note(const std::string& name, double value, const char* unit) {
    out_[name] = {{"value", value}, {"unit", unit}};
    fmt::print("{:<44} {:>12.3f} {}\n", name, value, unit);
    std::fflush(stdout);
  }

  // Seconds of one f() among many in the queue.
  double queued(const std::function<void()>& f, int64_t n) {
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) f();
    for (int64_t r = 0; r < s_.rounds; ++r) {
      synchronize();
      const auto start = Clock::now();
      for (int64_t i = 0; i < n; ++i) f();
      synchronize();
      all.push_back(seconds_since(start) / static_cast<double>(n));
    }
    return median(all);
  }
  // Seconds until f() has returned, its work being queued only.
  double host(const std::function<void()>& f, int64_t n) {
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) f();
    for (int64_t r = 0; r < s_.rounds; ++r) {
      synchronize();
      const auto start = Clock::now();
      for (int64_t i = 0; i < n; ++i) f();
      all.push_back(seconds_since(start) / static_cast<double>(n));
    }
    synchronize();
    return median(all);
  }

  void host_cost() {
    const Tensor a = rand({1}, kCUDA), b = rand({1}, kCUDA);
    note("host cost: add of one element", host([&] { a + b; }, 500) * 1e6, "us");
    const Tensor w = rand({1}, kCUDA).set_requires_grad(true);
    note("host cost: the same, gradient recorded", host([&] { w + b; }, 500) * 1e6, "us");
  }

  // Of kernels that nothing else here uses. With an empty BRRR_CACHE_DIR they are compiled; in the
  // next process with the same one they are read.
  void first_use() {
    const Tensor x = rand({1000}, kCUDA).to(kFloat16);
    Tensor (*const functions[])(const Tensor&) = {expm1, log1p, tanh, erf, sin};
    std::vector<double> ms;
    for (const auto f : functions) {
      const auto start = Clock::now();
      f(x);
      ms.push_back(seconds_since(start) * 1e3);
    }
    note("first use of a kernel in the process", median(ms), "ms");
  }

  void bandwidth() {
    const int64_t n = s_.elements;
    const Tensor x = rand({n}, kCUDA), y = rand({n}, kCUDA), z = empty({n}, kFloat32, kCUDA);
    const Backend& gpu = backend(DeviceType::CUDA);
    const double bytes = 8.0 * static_cast<double>(n);
    const double copy =
        bytes /
        queued([&] { gpu.copy(z.data_ptr(), x.data_ptr(), static_cast<size_t>(4 * n)); }, 5);
    note("device to device copy", copy / 1e9, "GB/s");
    auto report = [&](const std::string& name, double moved, const std::function<void()>& f) {
      const double rate = moved / queued(f, 5);
      note(name, rate / 1e9, "GB/s");
      note(name + ", of the copy", 100 * rate / copy, "%");
    };
    report("pointwise: x * 2", bytes, [&] { x * 2.0; });
    report("pointwise: x + y", 1.5 * bytes, [&] { x + y; });
    report("pointwise: gelu(x)", bytes, [&] { gelu(x); });
    const Tensor h = x.to(kBFloat16);
    report("pointwise: bfloat16 h * 2", bytes / 2, [&] { h * 2.0; });
    const Tensor m = x.view({n / s_.columns, s_.columns}), bias = rand({s_.columns}, kCUDA);
    report("pointwise: rows plus a bias", bytes, [&] { m + bias; });
    report("pointwise: a transposed copy", bytes, [&] { m.t().contiguous(); });
    report("reduction: sum of all", bytes / 2, [&] { x.sum(); });
    report("reduction: sum of columns", bytes / 2, [&] { m.sum({0}); });
    report("rows: softmax", bytes, [&] { m.softmax(-1); });
    const Tensor g = ones({s_.columns}, kCUDA);
    report("rows: layer_norm", bytes, [&] { layer_norm(m, {s_.columns}, g, bias, 1e-5); });
  }

  void products() {
    const int64_t n = s_.matrix;
    const double flops =
        2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    const Tensor a = randn({n, n}, kCUDA), b = randn({n, n}, kCUDA);
    auto report = [&](const std::string& name, const Tensor& x, const Tensor& y) {
      note(name, flops / queued([&] { x.matmul(y); }, 10) / 1e12, "TFLOP/s");
    };
    report("matmul: float32", a, b);
    set_allow_tf32(true);
    report("matmul: float32 by TF32", a, b);
    set_allow_tf32(false);
    report("matmul: bfloat16", a.to(kBFloat16), b.to(kBFloat16));
    report("matmul: bfloat16, right one transposed", a.to(kBFloat16), b.to(kBFloat16).t());
  }

  // The step in every mode, from the same weights and with the same losses to the last bit.
  template <class Model, class Loss>
  void train(const std::string& name, const std::string& key,
             const std::function<std::unique_ptr<Model>()>& make, const Loss& loss_of,
             const Tensor& x, const Tensor& y) {
    std::vector<float> eager;
    for (const StepMode& mode : kModes) {
      manual_seed(42);
      const auto model = make();
      keep_inputs(key, model->state_dict(), x, y);
      model->to(kCUDA);
      optim::AdamW opt(model->parameters(), {.lr = 1e-3});
      auto step = brrr::step(
          [&](const Tensor& a, const Tensor& b) {
            const Tensor loss = loss_of(*model, a, b);
            opt.zero_grad();
            loss.backward();
            opt.step();
            return loss.detach();
          },
          StepOptions{.mode = mode.mode, .require_graph = true});
      const Tensor on_gpu[] = {x.to(kCUDA), y.to(kCUDA)};
      const auto f = [&] { return step(on_gpu[0], on_gpu[1]); };
      std::vector<float> losses;
      for (int i = 0; i < kLosses; ++i) {
        if (mode.frozen && i == kLosses / 2) step.freeze();
        losses.push_back(f().template item<float>());
      }
      if (eager.empty()) eager = losses;
      if (losses != eager) throw Error(fmt::format("{}{}: not eager's losses", name, mode.suffix));
      const std::string label = name + mode.suffix;
      note(label, queued(f, s_.steps) * 1e6, "us");
      const double host_us = host(f, kHostSteps) * 1e6;
      note(label + ", host", host_us, "us");
      if (mode.mode == Mode::Eager) continue;
      const auto ops = static_cast<double>(step.stats().ops_per_replay);
      note(label + ", recorded ops", ops, "");
      note(label + ", host per recorded op", host_us * 1e3 / ops, "ns");
    }
    fmt::print("{}: losses {:.6f}\n", name, fmt::join(eager, " "));
    losses_[name] = eager;
  }

  // For the peers: a copy of the weights, under the model's own names, and the batch.
  void keep_inputs(const std::string& key, const StateDict& weights, const Tensor& x,
                   const Tensor& y) {
    for (const auto& [name, t] : weights) inputs_[key + "." + name] = t.detach().clone();
    inputs_[key + ".x"] = x;
    inputs_[key + ".y"] = y;
  }

  void steps() {
    manual_seed(7);
    const auto mlp_loss = [](models::MLP& m, const Tensor& x, const Tensor& y) {
      return cross_entropy(m(x), y);
    };
    for (int64_t batch : {32, 256, 1024}) {
      if (batch > s_.largest_mlp) continue;
      const Tensor x = randn({batch, 784}), y = randint(0, 10, {batch});
      const models::MLPOptions options{.sizes = {784, 256, 128, 10}, .activation = "relu"};
      train<models::MLP>(
          fmt::format("MLP step, batch {}", batch), fmt::format("mlp-{}", batch),
          [&] { return std::make_unique<models::MLP>(options); }, mlp_loss, x, y);
    }
    const int64_t block = 64;
    const models::GPTOptions options{
        .vocab = 65, .block = block, .layers = s_.gpt_layers, .heads = 4, .width = 128};
    train<models::GPT>(
        fmt::format("GPT step, {} layers, width 128, batch {}", s_.gpt_layers, s_.gpt_batch), "gpt",
        [&] { return std::make_unique<models::GPT>(options); },
        [](models::GPT& m, const Tensor& x, const Tensor& y) { return m.loss(x, y); },
        randint(0, 65, {s_.gpt_batch, block}), randint(0, 65, {s_.gpt_batch, block}));
  }

  const Sizes& s_;
  nlohmann::json out_ = nlohmann::json::object(), losses_ = nlohmann::json::object();
  StateDict inputs_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    bool quick = false, only_first_use = false;
    std::string json, inputs;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--quick") {
        quick = true;
      } else if (word == "--first-use") {
        only_first_use = true;
      } else if (word == "--json" && i + 1 < argc) {
        json = argv[++i];
      } else if (word == "--inputs" && i + 1 < argc) {
        inputs = argv[++i];
      } else if (word == "--help") {
        fmt::print(
            "usage: bench_gpu [--quick] [--first-use] [--json FILE] [--inputs FILE]\n"
            "  --quick      tiny sizes, to try it out\n"
            "  --first-use  only the host's cost and the first use of kernels\n"
            "  --inputs     write the steps' weights and batches (safetensors), for the peers\n");
        return 0;
      }  // Google Benchmark's options, which ./brrr bench hands to all, mean nothing here.
    }
    if (!cuda_available()) {
      fmt::print("no GPU here; nothing measured\n");
      return 0;
    }
    const DeviceProperties p = device_properties();
    fmt::print("{} | {:.0f} GiB | {}\n", p.name, static_cast<double>(p.memory_bytes) / 0x1p30,
               p.versions);
    nlohmann::json out = {{"device", p.name}, {"versions", p.versions}};
    Bench bench(quick ? kQuick : kFull);
    out["figures"] = bench.run(only_first_use);
    out["losses"] = bench.losses();
    if (!inputs.empty()) save(inputs, bench.inputs());
    if (!json.empty()) std::ofstream(json) << out.dump(2) << '\n';
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_gpu: {}\n", e.what());
    return 1;
  }
  return 0;
}
