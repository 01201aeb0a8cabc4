// The hand-written floor as a process of its own, with the libtorch peer's options and output.

#include <cblas.h>

#include <cstring>

#include "tests/bench/floor_mlp.h"
#include "tests/bench/peer.h"

namespace {

using namespace brrr::bench;

constexpr const char* help = R"(peer_floor_mlp: one training step of the MLP 784-256-128-10, by hand
  --batch N              rows per step (32)
  --optimizer sgd|adamw  (sgd)
  --steps N, --warmup N  timed steps (2000) and steps before them (200)
  --threads 1            the floor runs on one thread
Prints one JSON line.
)";

void run_mlp(const PeerOptions& o) {
  if (o.threads != 1) throw std::invalid_argument("--threads: the floor runs on one thread");
  const MlpBatches data = make_mlp_batches(o.batch);
  const bool sgd = o.optimizer == "sgd";
  FloorHyper hyper;
  hyper.lr = sgd ? sgd_lr : adamw_lr;
  hyper.weight_decay = adamw_weight_decay;
  FloorMlp mlp(mlp_sizes, o.batch, sgd ? FloorOptimizer::Sgd : FloorOptimizer::AdamW, hyper);
  for (std::size_t l = 0; l < mlp.num_layers(); ++l) init_mlp_layer(l, mlp.weight(l), mlp.bias(l));
  float loss = 0.0f;
  const auto us = time_steps(o.warmup, o.steps, [&](int i) {
    const auto b = static_cast<std::size_t>(i % num_batches);
    loss = mlp.step(data.x[b].data(), data.y[b].data());
  });
  print_step_json("floor", "1", openblas_get_corename(), o, mlp_parameters(), us, loss);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(help, stdout);
    return 0;
  }
  try {
    run_mlp(parse_peer_options(argc, argv, /*micro=*/false));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peer_floor_mlp: %s\n", e.what());
    return 1;
  }
  return 0;
}
