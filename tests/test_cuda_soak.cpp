// Long runs on a device: graph mode equals eager mode to the last bit, and memory does not grow.
#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

struct Recipe {
  std::vector<int64_t> sizes;
  int64_t batch;
  bool adamw;
  double dropout, clip;
};

// The losses of every tenth step, then the parameters.
Tensors train(const Recipe& r, Mode mode, int steps) {
  manual_seed(3);
  models::MLP model({.sizes = r.sizes, .activation = "relu"});
  model.to(kCUDA);
  std::unique_ptr<optim::Optimizer> opt;
  if (r.adamw) {
    opt = std::make_unique<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = 1e-3});
  } else {
    opt = std::make_unique<optim::SGD>(model.parameters(),
                                       optim::SGDOptions{.lr = 1e-2, .momentum = 0.9});
  }
  optim::CosineLR schedule(*opt, steps);
  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& y) {
        Tensor loss = cross_entropy(model(dropout(x, r.dropout, true)), y);
        opt->zero_grad();
        loss.backward();
        if (r.clip > 0) optim::clip_grad_norm_(model.parameters(), r.clip);
        opt->step();
        return loss;
      },
      mode);
  Tensors kept;
  for (int i = 0; i < steps; ++i) {
    const Tensor x = randn({r.batch, r.sizes[0]}, kCUDA);
    const Tensor loss = step(x, randint(0, r.sizes.back(), {r.batch}, kCUDA));
    if (i % 10 == 0) kept.push_back(loss);
    schedule.step();
  }
  for (const Tensor& p : model.parameters()) kept.push_back(p.detach());
  if (mode == Mode::Graph) {
    CHECK(step.stats().launches_per_replay == 1);
    CHECK(step.stats().recordings == 1);
    CHECK(step.stats().fallbacks == 0);
  }
  return kept;
}

}  // namespace

TEST_CASE("cuda step: 200 steps, graph mode is eager mode to the last bit") {
  if (!have_device()) return;
  // The emulator takes a thousand times as long as a GPU.
  const bool small = counters().has_value();
  const std::vector<int64_t> sizes =
      small ? std::vector<int64_t>{20, 32, 10} : std::vector<int64_t>{784, 256, 128, 10};
  for (int64_t batch : small ? std::vector<int64_t>{4, 9} : std::vector<int64_t>{32, 256, 1024}) {
    for (const Recipe& r :
         {Recipe{sizes, batch, false, 0, 0}, Recipe{sizes, batch, true, 0.1, 1.0}}) {
      CAPTURE(batch);
      const Tensors graph = train(r, Mode::Graph, 200), eager = train(r, Mode::Eager, 200);
      REQUIRE(graph.size() == eager.size());
      for (size_t i = 0; i < graph.size(); ++i) check_same(on_cpu(graph[i]), on_cpu(eager[i]));
    }
  }
}

TEST_CASE("cuda step: a thousand steps take no more memory than ten") {
  if (!have_device()) return;
  models::MLP model({.sizes = {20, 32, 10}, .activation = "relu"});
  model.to(kCUDA);
  optim::AdamW opt(model.parameters(), {.lr = 1e-3});
  auto step = brrr::step([&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(model(dropout(x.to(kCUDA), 0.1, true)), y.to(kCUDA));
    opt.zero_grad();
    loss.backward();
    opt.step();
    return loss;
  });
  const Tensor x = randn({4, 20}), y = randint(0, 10, {4});
  Tensor loss;
  for (int i = 0; i < 10; ++i) loss = step(x, y);
  const MemoryStats before = memory_stats();
  reset_peak_memory();
  for (int i = 0; i < 1000; ++i) {
    loss = step(x, y);
    if (i % 100 == 0) CHECK(std::isfinite(loss.item<float>()));
  }
  const MemoryStats after = memory_stats();
  CHECK(after.live == before.live);
  CHECK(after.reserved == before.reserved);
  CHECK(after.peak <= before.live + 1024);  // A loss is held while the next one is made.
  CHECK(step.stats().fallbacks == 0);
}
