// libtorch's C++ API as a peer: one training step of the benchmark's MLP, and one-element adds.
// A process of its own, because libtorch shares OpenBLAS's global thread setting.

#include <cstring>

#include "tests/bench/peer_torch_models.h"

namespace {

using namespace brrr::bench;

constexpr const char* help =
    R"(peer_torch_mlp: one training step of the MLP 784-256-128-10, libtorch
  --batch N              rows per step (32)
  --optimizer sgd|adamw  (sgd)
  --steps N, --warmup N  timed steps (2000) and steps before them (200)
  --threads N            at::set_num_threads (1)
  --micro add1           nanoseconds of a one-element add, without and with requires_grad
  --micro instr N        runs N one-element adds and nothing else, for callgrind; --grad: with
                         requires_grad. The difference of two N is the cost of the adds alone.
Prints one JSON line per configuration.
)";

void run_mlp(const PeerOptions& o) {
  const MlpBatches data = make_mlp_batches(o.batch);
  std::vector<torch::Tensor> x, y;
  for (int b = 0; b < num_batches; ++b) {
    // from_blob does not own its memory; data outlives the tensors.
    x.push_back(torch::from_blob(const_cast<float*>(data.x[b].data()), {o.batch, mlp_sizes.front()},
                                 torch::kFloat32));
    y.push_back(
        torch::from_blob(const_cast<std::int64_t*>(data.y[b].data()), {o.batch}, torch::kInt64));
  }
  TorchMlp model(mlp_sizes);
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    nn::Linear& layer = model.layers[l];
    init_mlp_layer(l, layer->weight.data_ptr<float>(), layer->bias.data_ptr<float>());
  }
  const auto optimizer = make_optimizer(o.optimizer, model.parameters());
  torch::Tensor loss;
  const auto us = time_steps(o.warmup, o.steps, [&](int i) {
    optimizer->zero_grad();
    loss = model.loss(x[i % num_batches], y[i % num_batches]);
    loss.backward();
    optimizer->step();
  });
  print_step_json("libtorch", TORCH_VERSION, openblas_core(), o, mlp_parameters(), us,
                  loss.item<float>());
}

// Median over 1000 samples of 200 adds each, short enough that few are hit by a preemption; the
// result is dropped at once, as in an expression.
Quantiles time_add(bool grad) {
  const auto a = torch::ones({1}, torch::requires_grad(grad));
  const auto b = torch::ones({1}, torch::requires_grad(grad));
  constexpr int adds = 200;
  auto us = time_steps(250, 1000, [&](int) {
    for (int k = 0; k < adds; ++k) torch::Tensor c = a + b;
  });
  for (double& t : us) t *= 1000.0 / adds;
  return quantiles(us);
}

void run_add1(const PeerOptions& o) {
  for (const bool grad : {false, true}) {
    const Quantiles ns = time_add(grad);
    std::printf(
        "{\"peer\":\"libtorch\",\"version\":\"%s\",\"model\":\"add1\",\"requires_grad\":%s,"
        "\"ns_per_op_median\":%.1f,\"p95\":%.1f,\"n\":1000,\"threads\":%d}\n",
        TORCH_VERSION, grad ? "true" : "false", ns.median, ns.p95, o.threads);
  }
}

void run_instr(const PeerOptions& o) {
  const auto a = torch::ones({1}, torch::requires_grad(o.grad));
  const auto b = torch::ones({1}, torch::requires_grad(o.grad));
  for (std::int64_t k = 0; k < o.count; ++k) torch::Tensor c = a + b;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(help, stdout);
    return 0;
  }
  try {
    const PeerOptions options = parse_peer_options(argc, argv, /*micro=*/true);
    at::set_num_threads(options.threads);
    if (options.micro == "add1") {
      run_add1(options);
    } else if (options.micro == "instr") {
      run_instr(options);
    } else {
      run_mlp(options);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peer_torch_mlp: %s\n", e.what());
    return 1;
  }
  return 0;
}
