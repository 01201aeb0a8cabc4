// Steps on a GPU: captured once, replayed by one launch, equal to eager mode to the last bit.
#include <optional>

#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// The results of a run.
struct Outcome {
  Tensors values;
  StepStats stats;
};
void check_equal(const Outcome& a, const Outcome& b) {
  REQUIRE(a.values.size() == b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    const std::string d = difference(on_cpu(a.values[i]), on_cpu(b.values[i]));
    CHECK_MESSAGE(d.empty(), "value ", i, ": ", d);
  }
}

struct Recipe {
  double dropout = 0, clip = 0;
  bool adamw = true, schedule = false, bfloat16 = false;
  int steps = 12;
};

Outcome train_mlp(const StepOptions& options, const Recipe& r) {
  manual_seed(7);
  models::MLP model({.sizes = {12, 32, 6}, .activation = "gelu"});
  if (r.bfloat16) model.to(kBFloat16);
  model.to(kCUDA);
  std::optional<optim::AdamW> adamw;
  std::optional<optim::SGD> sgd;
  if (r.adamw)
    adamw.emplace(model.parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  else
    sgd.emplace(model.parameters(), optim::SGDOptions{.lr = 1e-1, .momentum = 0.9});
  auto step = brrr::step(
      [&](const Tensor& x, const Tensor& y) {
        Tensor loss = cross_entropy(model(dropout(x, r.dropout, true)), y);
        adamw ? adamw->zero_grad() : sgd->zero_grad();
        loss.backward();
        if (r.clip > 0) optim::clip_grad_norm_(model.parameters(), r.clip);
        adamw ? adamw->step() : sgd->step();
        return loss;
      },
      options);
  Outcome s;
  for (int i = 0; i < r.steps; ++i) {
    const Tensor x = randn({5, 12}, kCUDA).to(r.bfloat16 ? kBFloat16 : kFloat32);
    const Tensor y = randint(0, 6, {5}, kCUDA);
    if (r.schedule && adamw) adamw->set_lr(1e-2 / (1 + i));
    s.values.push_back(step(x, y));  // All are held, and none may change.
  }
  for (const Tensor& p : model.parameters()) {
    s.values.push_back(p.detach());
    s.values.push_back(p.grad());
  }
  s.stats = step.stats();
  return s;
}

void same_in_both_modes(const Recipe& r) {
  const Outcome eager = train_mlp({.mode = Mode::Eager}, r);
  const Outcome graph = train_mlp({.require_graph = true}, r);
  check_equal(graph, eager);
  check_equal(train_mlp({.require_graph = true, .fuse = false}, r), eager);
  CHECK(graph.stats.recordings == 1);
  CHECK(graph.stats.replays == static_cast<uint64_t>(r.steps - 1));
  CHECK(graph.stats.fallbacks == 0);
  CHECK(graph.stats.launches_per_replay == 1);
}

}  // namespace

TEST_CASE("cuda step: an MLP trains to the same bits in both modes") {
  if (!have_device()) return;
  same_in_both_modes({});
  same_in_both_modes({.adamw = false});
  same_in_both_modes({.dropout = 0.2, .clip = 0.5, .schedule = true});
  same_in_both_modes({.dropout = 0.1, .bfloat16 = true});
}

TEST_CASE("cuda step: a GPT trains to the same bits in both modes") {
  if (!have_device()) return;
  auto run = [](Mode mode) {
    manual_seed(3);
    models::GPT gpt(
        {.vocab = 11, .block = 8, .layers = 1, .heads = 2, .width = 32, .dropout = 0.1});
    gpt.to(kCUDA);
    optim::AdamW opt(gpt.parameters(), {.lr = 1e-2});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          Tensor loss = cross_entropy(gpt(x).view({16, 11}), y.view({16}));
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        mode);
    Outcome s;
    for (int i = 0; i < 5; ++i) {
      const Tensor x = randint(0, 11, {2, 8}, kCUDA);
      s.values.push_back(step(x, randint(0, 11, {2, 8}, kCUDA)));
    }
    for (const Tensor& p : gpt.parameters()) s.values.push_back(p.detach());
    s.stats = step.stats();
    return s;
  };
  const Outcome graph = run(Mode::Graph);
  check_equal(graph, run(Mode::Eager));
  CHECK_MESSAGE(graph.stats.fallbacks == 0, graph.stats.last_fallback);
  CHECK(graph.stats.launches_per_replay == 1);
}

TEST_CASE("cuda step: pitfalls A4, A22: inputs that move, slices of a data set") {
  if (!have_device()) return;
  const Tensor data = randn({40, 6}, kCUDA), w = randn({6, 3}, kCUDA);
  auto body = [&](const Tensor& x) { return x.matmul(w).exp().sum({1}); };
  auto step = brrr::step(body, StepOptions{.require_graph = true});
  for (int i = 0; i < 8; ++i) {
    const Tensor x = data.narrow(0, i * 5 % 36, 4);  // Some begin at an odd address.
    check_same(on_cpu(step(x)), on_cpu(body(x)));
  }
  CHECK(step.stats().recordings == 1);
  Tensor average = zeros({4}, kCUDA), expected = zeros({4}, kCUDA);
  auto running = brrr::step([&](const Tensor& x) { average = average * 0.9 + x; });
  for (int i = 0; i < 6; ++i) {
    const Tensor x = randn({4}, kCUDA);
    running(x);
    expected = expected * 0.9 + x;
    check_same(on_cpu(average), on_cpu(expected));
  }
  auto anywhere = brrr::step([](const Tensor& x) { return x * 2.0; });
  for (int i = 0; i < 6; ++i) {
    const Tensor x = randn({4}), y = anywhere(x.to(i % 2 ? kCUDA : kCPU));
    CHECK(y.device() == (i % 2 ? kCUDA : kCPU));
    check_same(on_cpu(y), x * 2.0);
  }
  CHECK(anywhere.stats().recordings == 2);
  const std::string why = anywhere.stats().last_difference;
  CHECK_MESSAGE(contains(why, "expected float32[4] on cpu, found float32[4] on cuda:0"), why);
}

TEST_CASE("cuda step: pitfalls A6, A7: results stay valid, and may be passed as inputs") {
  if (!have_device()) return;
  auto body = [](const Tensor& x) { return x * 1.5 + 1.0; };
  auto step = brrr::step(body, StepOptions{.require_graph = true});
  Tensors held;
  Tensor x = ones({33}, kCUDA), y = ones({33}, kCUDA);
  for (int i = 0; i < 8; ++i) {
    x = step(x);
    y = body(y);
    held.push_back(x);
    check_same(on_cpu(x), on_cpu(y));
  }
  Tensor again = ones({33});
  for (const Tensor& t : held) check_same(on_cpu(t), again = body(again));
  // An address that the user has taken stays valid.
  const Tensor last = step(x);
  const void* address = last.data_ptr();
  step(last);
  CHECK(last.data_ptr() == address);
  check_same(on_cpu(last), body(on_cpu(x)));
}

TEST_CASE("cuda step: pitfall A10: gradients that are accumulated") {
  if (!have_device()) return;
  auto run = [](Mode mode) {
    manual_seed(1);
    Tensor w = randn({4, 4}, kCUDA).set_requires_grad(true);
    optim::SGD opt({w}, {.lr = 0.1});
    int k = 0;
    auto step = brrr::step(
        [&](const Tensor& x) {
          Tensor loss = x.matmul(w).square().mean();
          if (k % 4 == 0) opt.zero_grad();
          loss.backward();
          if (k % 4 == 3) opt.step();
          return loss;
        },
        mode);
    Outcome s;
    for (; k < 20; ++k) s.values.push_back(step(randn({3, 4}, kCUDA)));
    s.values.push_back(w.detach());
    s.values.push_back(w.grad());
    s.stats = step.stats();
    return s;
  };
  const Outcome graph = run(Mode::Graph);
  check_equal(graph, run(Mode::Eager));
  CHECK(graph.stats.recordings <= 4);
}

TEST_CASE("cuda step: pitfall A11: a last smaller batch") {
  if (!have_device()) return;
  const Tensor w = randn({6, 3}, kCUDA);
  auto body = [&](const Tensor& x) { return x.matmul(w).relu().sum(); };
  auto step = brrr::step(body, StepOptions{});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int64_t rows : {8, 8, 8, 5}) {
      const Tensor x = randn({rows, 6}, kCUDA);
      check_same(on_cpu(step(x)), on_cpu(body(x)));
    }
  }
  CHECK(step.stats().recordings == 2);
}

TEST_CASE("cuda step: pitfall A25: frozen") {
  if (!have_device()) return;
  auto run = [](bool freeze) {
    manual_seed(2);
    models::Linear layer(5, 3);
    layer.to(kCUDA);
    optim::AdamW opt(layer.parameters(), {.lr = 1e-2});
    auto step = brrr::step(
        [&](const Tensor& x) {
          Tensor loss = dropout(layer(x), 0.3, true).square().sum();
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        freeze ? Mode::Graph : Mode::Eager);
    Outcome s;
    for (int i = 0; i < 10; ++i) {
      if (i == 3 && freeze) step.freeze();
      opt.set_lr(1e-2 / (i + 1));
      s.values.push_back(step(randn({4, 5}, kCUDA)));
    }
    for (const Tensor& p : layer.parameters()) s.values.push_back(p.detach());
    return s;
  };
  check_equal(run(true), run(false));
}

TEST_CASE("cuda step: pitfall E5: verify_every") {
  if (!have_device()) return;
  Recipe r;
  const Outcome eager = train_mlp({.mode = Mode::Eager}, r);
  const Outcome graph = train_mlp({.verify_every = 2}, r);
  check_equal(graph, eager);
  CHECK(graph.stats.verified == 5);
}

TEST_CASE("cuda step: pitfalls B2, D4, D10: one launch, no allocation, no wait") {
  if (!have_device() || !counters()) return;
  models::MLP model({.sizes = {12, 32, 6}, .activation = "relu"});
  model.to(kCUDA);
  optim::AdamW opt(model.parameters(), {.lr = 1e-2});
  auto step = brrr::step([&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(model(x), y);
    opt.zero_grad();
    loss.backward();
    opt.step();
    return loss;
  });
  const Tensor x = randn({5, 12}, kCUDA), y = randint(0, 6, {5}, kCUDA);
  for (int i = 0; i < 4; ++i) step(x, y);
  const emulator::Counters before = *counters();
  for (int i = 0; i < 10; ++i) step(x, y);
  const emulator::Counters after = *counters();
  CHECK(after.graph_launches - before.graph_launches == 10);
  CHECK(after.kernels == before.kernels);
  CHECK(after.allocations == before.allocations);
  CHECK(after.waits == before.waits);
  CHECK(after.graphs == before.graphs);
  // The control block; the loss to the memory next to the fault record, and both to the host.
  CHECK(after.copies - before.copies == 30);
  CHECK(after.copies_to_host - before.copies_to_host == 10);
}

TEST_CASE("cuda step: pitfall B5: a capture that fails at any node leaves nothing behind") {
  const auto fail_at = emulated<void(int)>("brrr_emulator_fail");
  if (!have_device() || !fail_at) return;
  const Recipe r{.steps = 6};
  const Outcome eager = train_mlp({.mode = Mode::Eager}, r);
  const size_t live = memory_stats().live;
  const auto graphs = counters()->graphs;
  int failures = 0;
  for (int node = 1; node < 200; ++node) {
    fail_at(node);
    const Outcome graph = train_mlp({}, r);
    fail_at(0);
    check_equal(graph, eager);
    CHECK(counters()->graphs == graphs);
    if (graph.stats.launches_per_replay == 1 && node > 60) break;
    ++failures;
  }
  CHECK(failures > 10);
  CHECK(memory_stats().live <= live + 4096);
}

TEST_CASE("cuda step: pitfall B6: any order of destruction") {
  if (!have_device()) return;
  const size_t live = memory_stats().live;
  for (int i = 0; i < 20; ++i) {
    Tensor kept;
    {
      const Tensor w = randn({8, 8}, kCUDA);
      auto step = brrr::step([&](const Tensor& x) { return x.matmul(w) + 1.0; });
      const Tensor x = randn({8, 8}, kCUDA);
      for (int k = 0; k < 3; ++k) kept = step(x);
    }
    CHECK(kept.to(kCPU).sum().item<float>() != 0);  // Its slot has outlived the step.
  }
  CHECK(memory_stats().live == live);
}

TEST_CASE("cuda step: pitfall E10: a loss that is read late has not changed") {
  if (!have_device()) return;
  const Tensor w = randn({6}, kCUDA);
  auto body = [&](const Tensor& x) { return (x * w).sum(); };
  auto step = brrr::step(body, StepOptions{});
  Tensors losses, inputs;
  for (int i = 0; i < 10; ++i) {
    inputs.push_back(randn({6}, kCUDA));
    losses.push_back(step(inputs.back()));
    if (i >= 4) {
      const auto late = static_cast<size_t>(i - 4);
      CHECK(losses[late].item<float>() == body(inputs[late]).item<float>());
    }
  }
  losses[9].add_(1.0);  // The early copy is out of date now.
  CHECK(losses[9].item<float>() == (body(inputs[9]) + 1.0).item<float>());
}

TEST_CASE("cuda step: an index out of range is raised by the next read") {
  if (!have_device()) return;
  const Tensor table = randn({5, 3}, kCUDA);
  auto step = brrr::step([&](const Tensor& ids) { return embedding(table, ids).sum(); });
  const Tensor good = tensor({1, 4}).to(kCUDA);
  for (int i = 0; i < 3; ++i) step(good);
  const Tensor sum = step(tensor({1, 5}).to(kCUDA));
  CHECK(error_of([&] { sum.item<float>(); }).find("embedding: index 5") == 0);
  CHECK(step(good).item<float>() == embedding(table, good).sum().item<float>());
}

TEST_CASE("cuda step: a fault is raised once, and hides neither later ones nor good results") {
  if (!have_device()) return;
  const Tensor table = randn({5, 3}, kCUDA);
  auto step = brrr::step([&](const Tensor& ids) { return embedding(table, ids).sum(); });
  const Tensor good = tensor({1, 4}).to(kCUDA), bad = tensor({1, 9}).to(kCUDA);
  for (int i = 0; i < 3; ++i) step(good);
  const Tensor wrong = step(bad);
  Tensors right;
  for (int i = 0; i < 5; ++i) right.push_back(step(good));
  const Tensor other = table.index_select(1, tensor({0, 7}).to(kCUDA));
  CHECK(error_of([&] { wrong.item<float>(); }).find("embedding: index 9") == 0);
  CHECK(error_of([&] { other.to_vector<float>(); }).find("index_select: index 7") == 0);
  for (const Tensor& t : right) CHECK(t.item<float>() == right[0].item<float>());
  synchronize();
}
