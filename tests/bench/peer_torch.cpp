// libtorch's C++ API as a peer: one training step of the benchmarks' MLP and GPT, and one-element
// adds. In its own process, because libtorch shares OpenBLAS's global thread setting.

#include <cstdio>

#include "tests/bench/measure/timing.h"
#include "tests/bench/peer_torch_models.h"
#include "tests/bench/command_line.h"

namespace {

using namespace brrr::bench;

constexpr const char* help =
    R"(peer_torch: one training step in libtorch
  --model mlp|gpt        the MLP 784-256-128-10, or the GPT of 2 layers, width 64, 4 heads, block 32
                         (both)
  --batch N              rows (32) or sequences (8) per step
  --optimizer sgd|adamw  (sgd for the MLP, adamw for the GPT)
  --steps N, --warmup N  timed steps (2000, GPT 400) and steps before them (200, GPT 100)
  --threads N            at::set_num_threads (1)
  --gelu tanh|erf        the form of GELU (tanh, as in GPT-2; erf is the faster one in libtorch 1.13)
  --micro add1           nanoseconds of a one-element add, without and with requires_grad
  --micro instr N        runs N one-element adds and nothing else, for callgrind; --grad: with
                         requires_grad. The difference of two N is the cost of the adds alone.
Prints one JSON line per configuration.
Exit status: 0, 1 after an error, 2 if the command line is wrong.
)";

struct Options {
  std::string model, optimizer;  // A model and its default optimizer.
  int batch, steps, warmup;
  int threads = 1, count = 0;
  std::string only = "", gelu = "tanh", micro = "";  // only: the requested model.
  bool grad = false;

  bool take(Words& words) {
    const auto one_of = [&](const char* name, std::string& to, const char* a, const char* b) {
      if (!words.take(name, to)) return false;
      if (to == a || to == b) return true;
      throw UsageError(std::string(name) + ": '" + to + "' is neither " + a + " nor " + b);
    };
    if (one_of("--micro", micro, "add1", "instr")) {
      if (micro == "instr") {
        count = static_cast<int>(positive_number("--micro instr", words.value()));
      }
      return true;
    }
    return one_of("--model", only, "mlp", "gpt") || one_of("--gelu", gelu, "tanh", "erf") ||
           one_of("--optimizer", optimizer, "sgd", "adamw") || words.take("--batch", batch) ||
           words.take("--steps", steps) || words.take("--warmup", warmup) ||
           words.take("--threads", threads) || words.take("--grad", grad);
  }
};

// Calls step(i) warmup + steps times; microseconds of each of the last `steps` calls.
template <class Step> Quantiles time_steps(int warmup, int steps, Step&& step) {
  std::vector<double> us;
  for (int i = 0; i < warmup; ++i) step(i);
  for (int i = warmup; i < warmup + steps; ++i) {
    const auto start = Clock::now();
    step(i);
    us.push_back(1e6 * seconds_since(start));
  }
  return quantiles(us);
}

// `data` has x and y, each in num_batches vectors.
template <class Data> void run_model(const Options& o, TorchModel& model, const Data& data) {
  std::vector<torch::Tensor> x, y;
  for (std::size_t b = 0; b < num_batches; ++b) {
    x.push_back(torch::tensor(data.x[b]).view({o.batch, -1}));
    y.push_back(torch::tensor(data.y[b]));
  }
  std::int64_t parameters = 0;
  for (const auto& p : model.parameters()) parameters += p.numel();
  const auto optimizer = make_optimizer(o.optimizer, model.parameters());
  torch::Tensor loss;
  const Quantiles us = time_steps(o.warmup, o.steps, [&](int i) {
    drop_gradients(*optimizer);
    loss = model.loss(x[i % num_batches], y[i % num_batches]);
    loss.backward();
    optimizer->step();
  });
  std::printf(
      "{\"peer\":\"libtorch\",\"version\":\"%s\",\"model\":\"%s\",\"parameters\":%lld,"
      "\"batch\":%d,\"optimizer\":\"%s\",\"us_per_step_median\":%.2f,\"p95\":%.2f,\"n\":%zu,"
      "\"threads\":%d,\"final_loss\":%.9g,\"openblas_core\":\"%s\"}\n",
      TORCH_VERSION, o.model.c_str(), static_cast<long long>(parameters), o.batch,
      o.optimizer.c_str(), us.median, us.p95, us.n, o.threads, loss.item<float>(), openblas_core());
}

void run_mlp(const Options& o) {
  TorchMlp model(mlp_sizes);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    nn::Linear& layer = model.layers[l];
    init_mlp_layer(l, layer->weight.data_ptr<float>(), layer->bias.data_ptr<float>());
  }
  run_model(o, model, make_mlp_batches(o.batch));
}

void run_gpt(const Options& o) {
  TorchGpt model(gpt_sizes, o.gelu == "erf" ? "none" : "tanh");
  std::size_t index = 0;
  for (const auto& p : model.named_parameters()) {
    init_gpt_parameter(index++, p.key(), p.value().dim() == 2, p.value().data_ptr<float>(),
                       p.value().numel());
  }
  run_model(o, model, make_gpt_batches(o.batch));
}

// Adds n times; each result is dropped at once, like a temporary.
auto adds(bool grad) {
  return [a = torch::ones({1}, torch::requires_grad(grad)),
          b = torch::ones({1}, torch::requires_grad(grad))](int n) {
    for (int k = 0; k < n; ++k) torch::Tensor c = a + b;
  };
}

void run_micro(const Options& o) {
  if (o.micro == "instr") return adds(o.grad)(o.count);
  for (const bool grad : {false, true}) {
    // Short samples, so that few of them are hit by a preemption.
    constexpr int n = 200;
    const auto run = adds(grad);
    const Quantiles us = time_steps(250, 1000, [&](int) { run(n); });
    std::printf(
        "{\"peer\":\"libtorch\",\"version\":\"%s\",\"model\":\"add1\",\"requires_grad\":%s,"
        "\"ns_per_op_median\":%.1f,\"p95\":%.1f,\"n\":%zu,\"threads\":%d}\n",
        TORCH_VERSION, grad ? "true" : "false", us.median * 1000 / n, us.p95 * 1000 / n, us.n,
        o.threads);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options mlp{"mlp", "sgd", 32, 2000, 200}, gpt{"gpt", "adamw", 8, 400, 100};
    for (Options o : {mlp, gpt}) {
      if (!read_words(argc, argv, help, o)) break;
      at::set_num_threads(o.threads);
      if (!o.micro.empty()) {
        run_micro(o);
        break;
      }
      if (o.only.empty() || o.only == o.model) (o.model == "mlp" ? run_mlp : run_gpt)(o);
    }
    return 0;
  } catch (const std::exception& e) {
    return status_of("peer_torch", e);
  }
}
