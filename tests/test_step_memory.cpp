// Memory of a replay at its peak; release of a tape's memory.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

using namespace brrr;

// The update of a bias can be fused with the copy that makes its gradient, long before the last
// product. If it ran there, every parameter would have to be copied first, to undo the step if a
// later kernel fails.
TEST_CASE("graph: updates run after all that can fail, so that a replay copies no parameters") {
  models::MLP model({.sizes = {128, 128, 128, 128}});
  optim::SGD opt(model.parameters(), {.lr = 1e-3});
  size_t parameter_bytes = 0;
  for (const Tensor& p : model.parameters()) {
    parameter_bytes += static_cast<size_t>(p.numel()) * sizeof(float);
  }
  auto train = step(
      [&](const Tensor& x, const Tensor& y) {
        Tensor loss = cross_entropy(model(x), y);
        opt.zero_grad();
        loss.backward();
        opt.step();
        return loss;
      },
      StepOptions{.require_graph = true});
  const Tensor x = randn({4, 128}), y = randint(0, 128, {4});
  for (int k = 0; k < 3; ++k) train(x, y);
  const size_t live = memory_stats(default_device()).live;
  reset_peak_memory(default_device());
  train(x, y);
  const size_t more = memory_stats(default_device()).peak - live;
  // New gradients, besides the old ones until the step cannot fail any more, and the arena.
  CHECK(more < parameter_bytes + train.stats().arena_bytes + parameter_bytes / 2);
  CHECK(train.stats().fallbacks == 0);
}

// The product saves `b`, and then `b` itself gets a history that leads to the product.
TEST_CASE("tape: a saved tensor that is changed in place does not keep its history alive") {
  Tensor a = ones({1000});
  a.set_requires_grad(true);
  const size_t live = memory_stats(default_device()).live;
  for (const bool differentiable : {false, true}) {
    for (const int rounds : {1, 3}) {
      Tensor b = differentiable ? a * 2.0 : ones({1000});
      for (int k = 0; k < rounds; ++k) b.add_((a * b).exp());
      if (rounds == 1) continue;
      CHECK_THROWS_WITH_AS(b.sum().backward(), doctest::Contains("changed in place"), Error);
    }
    CHECK(memory_stats(default_device()).live == live);
  }
  // The cycle appears later, beside a history without it.
  {
    Tensor b = ones({1000});
    const Tensor y = a * b;
    b.add_(a * 3.0);
    b.add_(y);
  }
  CHECK(memory_stats(default_device()).live == live);
  // An unchanged tensor keeps its history for a second-order gradient.
  const Tensor b = a * a;
  const Tensor first = grad({(b * b).sum()}, {a}, {.create_graph = true})[0];
  CHECK(grad({first.sum()}, {a})[0].to_vector<float>()[0] == 12.0f);
}

// Verification gives each survivor separate memory, where temporaries of a replay must not rely on
// adjacent gradients.
TEST_CASE("step: temporaries of a verified replay stay within the results that hold them" *
          doctest::test_suite("host")) {
  models::MLP model({.sizes = {1024, 256, 256, 256, 256, 10}});
  optim::SGD opt(model.parameters(), {.lr = 1e-3});
  auto train = step(
      [&](const Tensor& x, const Tensor& y) {
        const Tensor loss = cross_entropy(model(x), y);
        opt.zero_grad();
        loss.backward();
        opt.step();
        return loss;
      },
      // With parts fewer temporaries would be left, the fewer processors there are.
      StepOptions{.verify_every = 1, .require_graph = true, .part_bytes = -1});
  const Tensor x = randn({512, 1024}), y = randint(0, 10, {512});
  train(x, y);
  // Tensors that may be placed behind the survivors' memory.
  std::vector<Tensor> others;
  for (int k = 0; k < 32; ++k) others.push_back(full({256 << (k % 4), 256}, k));
  for (int k = 0; k < 3; ++k) CHECK_NOTHROW(train(x, y));
  CHECK(train.explain().find("temporaries placed in results") != std::string::npos);
  CHECK(train.stats().verified == 3);
  for (int k = 0; k < 32; ++k) {
    CHECK(same_bits(others[static_cast<size_t>(k)], full({256 << (k % 4), 256}, k)));
  }
}

TEST_CASE("graph: a step given {} gets options, and records") {
  const auto twice = [](const Tensor& x) { return x * 2.0; };
  CHECK(step(twice).mode() == Mode::Graph);
  CHECK(step(twice, {}).mode() == Mode::Graph);
  CHECK(step(twice, {.fuse = false}).mode() == Mode::Graph);
  CHECK(step(twice, Mode::Eager).mode() == Mode::Eager);
}
