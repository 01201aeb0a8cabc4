// Host data of a step on a GPU: data made inside it or copied to the device there, and arguments
// written in place.
#include <functional>
#include <limits>

#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr StepOptions kReplayed{.require_graph = true};

// A step that was recorded once and replayed by one launch from the second call on.
void check_replayed(const StepStats& s) {
  CHECK_MESSAGE(s.recordings == 1, s.last_difference);
  CHECK(s.replays == s.calls - 1);
  CHECK_MESSAGE(s.fallbacks == 0, s.last_fallback);
  CHECK(s.launches_per_replay == 1);
}

}  // namespace

TEST_CASE("cuda step: pitfall A21: host data made inside the function is fresh on every call") {
  if (!have_device()) return;
  const Tensor table = randn({9, 3}, kCUDA);
  std::vector<float> buffer(6);
  int k = 0;
  auto body = [&](const Tensor& x) {
    for (size_t i = 0; i < 6; ++i)
      buffer[i] = static_cast<float>(k) + 0.25f * static_cast<float>(i);
    const Tensor a = tensor({1.0 * k, 2.0 + k, -1.0 * k}).to(kCUDA);
    const Tensor b = from_blob(buffer.data(), {2, 3}, kFloat32).to(kCUDA);
    const Tensor t = from_blob(buffer.data(), {3, 2}, kFloat32).t().narrow(1, 1, 2).to(kCUDA);
    const Tensor ids = tensor({{k % 9, 8}, {3, (k + 4) % 9}}).to(kCUDA);
    const Tensor v = tensor(std::vector<double>{0.1 * k, 1.0, 2.0}).to(kCUDA);
    const Tensor none = tensor(std::vector<float>{}).to(kCUDA);
    buffer[0] = -1;  // After the copies.
    Tensor changed = tensor({1, 2 * k}).to(kCUDA);
    changed.add_(3);
    Tensor passing = tensor({1.5 * k, 1.0, 2.0}).to(kCUDA);
    passing.select(0, 1).mul_(3.0);
    return std::tuple{x + a + passing,    b * x,      t.exp(), embedding(table, ids),
                      v.to(kFloat32) * x, none.sum(), changed, tensor(0.5 * k).to(kCUDA) * x};
  };
  auto step = brrr::step(body, kReplayed);
  auto unfused = brrr::step(body, StepOptions{.require_graph = true, .fuse = false});
  auto verified = brrr::step(body, StepOptions{.verify_every = 2});
  auto list = [](const auto& results) {
    return std::apply([](const auto&... t) { return Tensors{on_cpu(t)...}; }, results);
  };
  for (; k < 8; ++k) {
    const Tensor x = randn({3}, kCUDA);
    const Tensors expected = list(body(x));
    check_same(list(step(x)), expected);
    check_same(list(unfused(x)), expected);
    check_same(list(verified(x)), expected);
  }
  check_replayed(step.stats());
  check_replayed(unfused.stats());
  CHECK(verified.stats().verified == 3);
  CHECK(contains(error_of([&] { step.freeze(); }), "host memory"));
}

TEST_CASE("cuda step: pitfall A21: a CPU tensor from before the step is copied on every call") {
  if (!have_device()) return;
  const Tensor data = randn({40, 6});
  std::vector<float> buffer(6, 0.5f);
  const Tensor reused = from_blob(buffer.data(), {6}, kFloat32, false);
  const Tensor w = randn({6, 3}, kCUDA);
  auto body = [&](const Tensor& x) {
    const Tensor here = (x.to(kCUDA) + reused.to(kCUDA)).matmul(w);
    return std::pair{here.sum({1}), x.t().to(kCUDA)};
  };
  auto step = brrr::step(body, kReplayed);
  std::vector<std::pair<Tensor, Tensor>> held, expected;
  for (int i = 0; i < 8; ++i) {
    for (float& f : buffer) f += 0.125f;
    const Tensor x = data.narrow(0, i * 5 % 36, 4);
    held.push_back(step(x));
    expected.push_back(body(x));
  }
  for (size_t i = 0; i < held.size(); ++i) {  // Later calls have changed none.
    check_same(on_cpu(held[i].first), on_cpu(expected[i].first));
    check_same(on_cpu(held[i].second), on_cpu(expected[i].second));
  }
  check_replayed(step.stats());
  // Another shape needs another recording, another layout of the same shape does not.
  step(randn({4, 6}));
  step(randn({6, 4}).t());
  CHECK(step.stats().recordings == 1);
  step(data);
  CHECK(step.stats().recordings == 2);
}

TEST_CASE("cuda step: pitfall A21: training on batches of the host, to the same bits") {
  if (!have_device()) return;
  struct Story {
    Tensors values;
    StepStats stats;
  };
  auto train = [](const StepOptions& options) {
    manual_seed(5);
    models::MLP model({.sizes = {12, 32, 6}, .activation = "gelu"});
    model.to(kCUDA);
    optim::AdamW opt(model.parameters(), {.lr = 1e-2});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          const Tensor here = dropout(x.to(kCUDA), 0.2, true);
          Tensor loss = cross_entropy(model(here), y.to(kCUDA));
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss;
        },
        options);
    Story s;
    for (int i = 0; i < 10; ++i) {
      opt.set_lr(1e-2 / (1 + i));
      s.values.push_back(step(randn({5, 12}), randint(0, 6, {5})));
    }
    for (const Tensor& p : model.parameters()) {
      s.values.push_back(p.detach());
      s.values.push_back(p.grad());
    }
    for (Tensor& t : s.values) t = on_cpu(t);
    s.stats = step.stats();
    return s;
  };
  const Story eager = train({.mode = Mode::Eager});
  const Story graph = train(kReplayed);
  check_same(graph.values, eager.values);
  check_replayed(graph.stats);
  check_same(train({.require_graph = true, .fuse = false}).values, eager.values);
  check_same(train({.mode = Mode::Auto}).values, eager.values);
}

TEST_CASE("cuda step: host data of more than one pinned slot") {
  if (!have_device()) return;
  const int64_t n = (5 << 20) / 4 + 3;
  auto body = [](const Tensor& x, const Tensor& y) { return x.to(kCUDA) * 2.0 + y.to(kCUDA); };
  auto step = brrr::step(body, kReplayed);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = randn({n}), y = randn({n});
    check_same(on_cpu(step(x, y)), on_cpu(body(x, y)));
  }
  check_replayed(step.stats());
}

TEST_CASE("cuda step: tensors computed on the CPU inside a step cannot be moved to the device") {
  if (!have_device()) return;
  Tensor w = ones({3}, kCUDA), h = ones({3});
  int how = 0;
  auto moved = [&](const Tensor& x) -> Tensor {
    if (how == 1) return (x + 1.0).to(kCUDA);
    if (how == 2) {
      h.add_(1.0);
      return h.to(kCUDA);
    }
    if (how == 3) {
      const Tensor t = tensor({1.f, 2.f, 3.f});
      t.mul_(2.0);
      return t.to(kCUDA);
    }
    if (how == 4) return zeros({3}).to(kCUDA);
    return x.to(kCUDA);
  };
  auto step = brrr::step([&](const Tensor& x) {
    w.add_(1.0);
    return moved(x) * w;
  });
  const Tensor x = randn({3});
  for (int i = 0; i < 3; ++i) step(x);
  for (how = 1; how <= 4; ++how) {
    const std::string said = error_of([&] { step(x); });
    CHECK_MESSAGE(contains(said, "to(device): float32[3] is computed on the CPU inside a"), said);
  }
  // Those steps have had no effect.
  CHECK(h.to_vector<float>() == std::vector<float>(3, 1.f));
  CHECK(w.to_vector<float>() == std::vector<float>(3, 4.f));
  how = 0;
  check_same(on_cpu(step(x)), on_cpu(x.to(kCUDA) * 5.0));
  CHECK(step.stats().recordings == 1);
  CHECK(step.stats().replays == 3);
}

TEST_CASE("cuda step: a CPU tensor that requires grad is refused alike in both modes") {
  if (!have_device()) return;
  const Tensor leaf = randn({3}).set_requires_grad(true);
  Tensor w = ones({3}, kCUDA);
  auto body = [&](const Tensor& x) {
    w.add_(1.0);
    return x.to(kCUDA) * w;
  };
  auto step = brrr::step(body);
  const std::string graph = error_of([&] { step(leaf); });
  CHECK(w.to_vector<float>() == std::vector<float>(3, 1.f));
  CHECK_MESSAGE(contains(graph, "to(device): float32[3] requires grad"), graph);
  CHECK(graph == error_of([&] { body(leaf); }));
  // Detached, it can be copied.
  auto data = brrr::step([&](const Tensor& x) { return x.detach().to(kCUDA) * 2.0; }, kReplayed);
  for (int i = 0; i < 3; ++i) check_same(on_cpu(data(leaf)), leaf.detach() * 2.0);
  check_replayed(data.stats());
}

TEST_CASE("cuda step: reading the device inside a step is refused, computing on both falls back") {
  if (!have_device()) return;
  auto reads = brrr::step([](const Tensor& x) { return x.to(kCPU); });
  CHECK(contains(error_of([&] { reads(ones({3}, kCUDA)); }), "cannot be read inside"));
  auto body = [](const Tensor& x) { return std::pair{x + 1.0, x.to(kCUDA) * 2.0}; };
  auto both = brrr::step(body);
  for (int i = 0; i < 3; ++i) {
    const Tensor x = randn({3});
    const auto [a, b] = both(x);
    check_same(a, x + 1.0);
    check_same(on_cpu(b), x * 2.0);
  }
  CHECK(both.stats().fallbacks == 2);
  CHECK(contains(both.stats().last_fallback, "on the CPU and on a GPU"));
  // A CPU result that is not used does not count as work on the CPU.
  const Tensor here = randn({3});
  auto idle = brrr::step(
      [&](const Tensor& x) {
        (here + x).exp();
        return x.to(kCUDA) * 2.0;
      },
      StepOptions{.verify_every = 2, .require_graph = true});
  for (int i = 0; i < 5; ++i) {
    const Tensor x = randn({3});
    check_same(on_cpu(idle(x)), x * 2.0);
  }
  check_replayed(idle.stats());
  auto strict = brrr::step(body, kReplayed);
  strict(ones({3}));
  CHECK(contains(error_of([&] { strict(ones({3})); }), "on the CPU and on a GPU"));
}

TEST_CASE("cuda step: pitfall D6: one copy brings the control block and all host data") {
  if (!have_device() || !counters()) return;
  models::MLP model({.sizes = {12, 32, 6}, .activation = "relu"});
  model.to(kCUDA);
  optim::AdamW opt(model.parameters(), {.lr = 1e-2});
  int k = 0;
  auto step = brrr::step([&](const Tensor& x, const Tensor& y) {
    const Tensor scale = tensor({1.0 + k, 2.0}).to(kCUDA);
    Tensor loss = cross_entropy(model(x.to(kCUDA)), y.to(kCUDA)) * scale.sum();
    opt.zero_grad();
    loss.backward();
    opt.step();
    return loss;
  });
  const Tensor x = randn({5, 12}), y = randint(0, 6, {5});
  for (; k < 4; ++k) step(x, y);
  const emulator::Counters before = *counters();
  for (; k < 14; ++k) {
    opt.set_lr(1e-2 / k);
    step(x, y);
  }
  const emulator::Counters after = *counters();
  CHECK(after.graph_launches - before.graph_launches == 10);
  CHECK(after.kernels == before.kernels);
  CHECK(after.allocations == before.allocations);
  CHECK(after.waits == before.waits);
  CHECK(after.graphs == before.graphs);
  // The upload; the loss to the memory next to the fault record, and both to the host.
  CHECK(after.copies - before.copies == 30);
  CHECK(after.copies_to_host - before.copies_to_host == 10);
  check_replayed(step.stats());
}

TEST_CASE("cuda step: pitfall D6: step.input on the device is what the captured kernels read") {
  if (!have_device()) return;
  const Tensor w = randn({6, 3}, kCUDA);
  auto body = [&](const Tensor& x, const Tensor& y) { return (x.matmul(w) + y).sum({1}); };
  auto step = brrr::step(body, kReplayed);
  Tensor x = step.input(0, {4, 6}, kFloat32, kCUDA), y = step.input(1, {3}, kFloat32, kCUDA);
  CHECK(x.device() == kCUDA);
  CHECK(x.is_same(step.input(0, {4, 6}, kFloat32, kCUDA)));
  CHECK_FALSE(x.is_same(step.input(0, {4, 6})));  // That one is on the CPU.
  CHECK_FALSE(x.is_same(step.input(0, {2, 6}, kFloat32, kCUDA)));
  const void* address = x.data_ptr();
  for (int i = 0; i < 6; ++i) {
    x.copy_(randn({4, 6}));      // From the host,
    y.copy_(randn({3}, kCUDA));  // and on the device.
    check_same(on_cpu(step(x, y)), on_cpu(body(x, y)));
    CHECK(step.input(0, {4, 6}, kFloat32, kCUDA).data_ptr() == address);
  }
  check_replayed(step.stats());
  CHECK_MESSAGE(contains(step.explain(), "inputs copied 0"), step.explain());
  CHECK_MESSAGE(contains(step.explain(), "captured 1 times"), step.explain());
  // An argument that is not an input works, and has to be copied.
  check_same(on_cpu(step(randn({4, 6}, kCUDA) * 0.0, y)), on_cpu(body(zeros({4, 6}, kCUDA), y)));
  CHECK(contains(step.explain(), "inputs copied 1"));
}

TEST_CASE("cuda step: pitfall D6: a steady step with an input copies nothing on the device") {
  if (!have_device() || !counters()) return;
  auto step = brrr::step([](const Tensor& x) { return (x * 2.0).sum(); });
  const Tensor batch = randn({4, 6});
  Tensor x = step.input(0, {4, 6}, kFloat32, kCUDA);
  for (int i = 0; i < 4; ++i) {
    x.copy_(batch);
    step(x);
  }
  const emulator::Counters before = *counters();
  for (int i = 0; i < 10; ++i) step(x);
  const emulator::Counters after = *counters();
  CHECK(after.copies - before.copies == 20);  // Of the sum, as above.
  CHECK(after.copies_to_host - before.copies_to_host == 10);
  for (int i = 0; i < 10; ++i) {
    x.copy_(batch);
    step(x);
  }
  CHECK(counters()->allocations == before.allocations);
  CHECK(counters()->waits == before.waits);
  CHECK(counters()->copies - after.copies == 30);  // The batch, too.
}

TEST_CASE("cuda step: pitfall D6: step.input says what is wrong") {
  if (!have_device()) return;
  auto step = brrr::step([](const Tensor& x) { return x * 2.0; });
  auto said = [&](int index, const IntList& sizes, Device device) {
    return error_of([&] { step.input(index, sizes, kFloat32, device); });
  };
  CHECK(contains(said(-1, {2}, kCUDA), "step.input: argument -1 does not exist"));
  CHECK(contains(said(0, {2, -3}, kCUDA), "step.input: sizes must not be negative, got [2, -3]"));
  CHECK(contains(said(0, {2}, {DeviceType::CUDA, 1}),
                 "there is no cuda:1: a process has one GPU, cuda:0"));
  step(ones({2}, kCUDA));
  CHECK(
      contains(said(1, {2}, kCUDA), "argument 1 does not exist: the step has been called with 1"));
  // A value that does not fit is refused by the write.
  Tensor x = step.input(0, {2, 3}, kFloat32, kCUDA);
  CHECK(contains(error_of([&] { x.copy_(ones({2, 4})); }), "copy"));
  x.copy_(ones({3}, kFloat64));  // Broadcast and converted, as everywhere.
  CHECK(x.to_vector<float>() == std::vector<float>(6, 1.f));
  const Tensor leaf = ones({3}).set_requires_grad(true);
  CHECK(contains(error_of([&] { x.copy_(leaf); }), "requires grad"));
  auto inside = brrr::step([&](const Tensor& t) {
    step.input(0, {2}, kFloat32, kCUDA);
    return t;
  });
  CHECK(contains(error_of([&] { inside(x); }), "step.input"));
}

TEST_CASE("cuda: copy_ between devices") {
  if (!have_device()) return;
  const Tensor x = randn({5, 4}), gpu = zeros({5, 4}, kCUDA), cpu = zeros({5, 4});
  gpu.copy_(x);
  check_same(on_cpu(gpu), x);
  gpu.t().copy_(x.t() * 2.0);  // Through views.
  check_same(on_cpu(gpu), x * 2.0);
  cpu.copy_(gpu);
  check_same(cpu, x * 2.0);
  const uint32_t version = gpu.version();
  gpu.copy_(x);
  CHECK(gpu.version() == version + 1);
}

TEST_CASE("cuda step: a frozen step computes on its argument's device") {
  if (!have_device()) return;
  const auto frozen_for = [](Device device) {
    auto s = brrr::step([](const Tensor& x) { return x * 2.0; }, {.build_at_first_call = true});
    for (int call = 0; call < 3; ++call) s(ones({4}).to(device));
    s.freeze();
    return s;
  };
  for (const Device device : {kCPU, kCUDA}) {
    auto s = frozen_for(device);
    for (const Device other : {kCUDA, kCPU}) {
      const Tensor y = s(full({4}, 3.0).to(other));
      CHECK(y.device() == other);
      CHECK(same_bits(y, full({4}, 6.0)));
    }
  }
}
