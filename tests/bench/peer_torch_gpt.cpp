// libtorch's C++ API as a peer: one training step of the benchmark's GPT. A process of its own,
// because libtorch shares OpenBLAS's global thread setting.

#include <cstring>

#include "tests/bench/peer_torch_models.h"

namespace {

using namespace brrr::bench;

constexpr const char* help =
    R"(peer_torch_gpt: one training step of a GPT (2 layers, width 64, 4 heads, block 32), libtorch
  --batch N              sequences per step (8)
  --optimizer sgd|adamw  (adamw)
  --steps N, --warmup N  timed steps (400) and steps before them (100)
  --threads N            at::set_num_threads (1)
  --gelu tanh|erf        the form of GELU (tanh, as in GPT-2; erf is the faster one in libtorch 1.13)
Prints one JSON line.
)";

void run_gpt(const PeerOptions& o, const char* gelu) {
  GptBatches data = make_gpt_batches(o.batch);
  std::vector<torch::Tensor> x, y;
  for (int b = 0; b < num_batches; ++b) {
    // from_blob does not own its memory; data outlives the tensors.
    const std::vector<std::int64_t> sizes = {o.batch, gpt_sizes.block};
    x.push_back(torch::from_blob(data.x[b].data(), sizes, torch::kInt64));
    y.push_back(torch::from_blob(data.y[b].data(), sizes, torch::kInt64));
  }
  TorchGpt model(gpt_sizes, gelu);
  std::int64_t count = 0;
  std::size_t index = 0;
  for (const auto& p : model.named_parameters()) {
    count += p.value().numel();
    init_gpt_parameter(index++, p.key(), p.value().dim() == 2, p.value().data_ptr<float>(),
                       p.value().numel());
  }
  const auto optimizer = make_optimizer(o.optimizer, model.parameters());
  torch::Tensor loss;
  const auto us = time_steps(o.warmup, o.steps, [&](int i) {
    optimizer->zero_grad();
    loss = model.loss(x[i % num_batches], y[i % num_batches]);
    loss.backward();
    optimizer->step();
  });
  print_step_json("libtorch", TORCH_VERSION, openblas_core(), o, count, us, loss.item<float>());
}

// Takes --gelu out of argv; libtorch's name for the form.
const char* take_gelu(int& argc, char** argv) {
  const char* form = "tanh";
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--gelu") != 0) {
      argv[kept++] = argv[i];
      continue;
    }
    const std::string value = ++i < argc ? argv[i] : "nothing";
    if (value != "tanh" && value != "erf") {
      throw std::invalid_argument("--gelu: '" + value + "' is neither tanh nor erf");
    }
    form = value == "erf" ? "none" : "tanh";
  }
  argc = kept;
  return form;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(help, stdout);
    return 0;
  }
  try {
    PeerOptions defaults;
    defaults.model = "gpt";
    defaults.batch = 8;
    defaults.optimizer = "adamw";
    defaults.steps = 400;
    defaults.warmup = 100;
    const char* gelu = take_gelu(argc, argv);
    const PeerOptions options = parse_peer_options(argc, argv, /*micro=*/false, defaults);
    at::set_num_threads(options.threads);
    run_gpt(options, gelu);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peer_torch_gpt: %s\n", e.what());
    return 1;
  }
  return 0;
}
