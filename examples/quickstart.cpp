// A minimal complete training loop: the same code in both modes, on the GPU if there is one.
#include <brrr/brrr.h>
#include <cstdio>
using brrr::Tensor;

int main() {
  brrr::manual_seed(42);
  brrr::Device device = brrr::cuda_available() ? brrr::kCUDA : brrr::kCPU;

  brrr::models::MLP model({.sizes = {784, 256, 128, 10}, .activation = "relu"});
  model.to(device);
  brrr::optim::AdamW opt(model.parameters(), {.lr = 1e-3, .weight_decay = 0.01});

  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& y) {
        Tensor loss = brrr::cross_entropy(model(x), y);  // y: int64 class ids [batch]
        opt.zero_grad();
        loss.backward();
        opt.step();
        return loss;
      },
      brrr::Mode::Graph);  // or Mode::Eager: nothing else changes

  for (int i = 0; i < 1000; ++i) {
    Tensor x = brrr::randn({32, 784}, device), y = brrr::randint(0, 10, {32}, device);
    opt.set_lr(1e-3 * (1.0 - i / 1000.0));  // takes effect in both modes, no recompile
    Tensor loss = step(x, y);
    if (i % 100 == 0) std::printf("%4d  %.4f\n", i, loss.item<float>());
  }
  std::puts(step.explain().c_str());  // entries, replays, fallbacks and why, kernels, bytes, times
}
