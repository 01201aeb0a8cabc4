// Steps on a GPU that fail or are inspected: the names of faults and failures, the choice of
// Mode::Auto, the debug walk.
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "brrr.h"
#include "tests/auto_choice.h"
#include "tests/cuda_cases.h"
#include "tests/emulator_calls.h"
#include "tests/temp_cache.h"
#include "tests/temp_dir.h"

using namespace brrr;
using namespace brrr::test;

namespace {

struct Model : models::Module {
  models::Embedding wte{5, 4};
  models::Linear head{4, 3};
  bool bad = false;
  Model() {
    register_module("wte", wte);
    register_module("head", head);
    to(kCUDA);
  }
  Tensor forward(const Tensor& ids) override {
    const Tensor h = wte(ids);
    return head(bad ? (h.square() * -1.0).log() : h);
  }
};
struct Root : models::Module {
  Model net;
  Root() { register_module("net", net); }
};

Tensor good_ids() { return tensor({1, 4}).to(kCUDA); }
Tensor bad_ids() { return tensor({1, 9}).to(kCUDA); }

}  // namespace

TEST_CASE("cuda step: a fault in a replay names the op and the module") {
  if (!have_device()) return;
  Root root;
  auto step = brrr::step([&](const Tensor& ids) { return root.net(ids).sum(); });
  for (int i = 0; i < 3; ++i) step(good_ids());
  const Tensor wrong = step(bad_ids());
  const std::string replayed = error_of([&] { wrong.item<float>(); });
  CHECK_MESSAGE(contains(replayed, "embedding: index 9 is out of range"), replayed);
  CHECK_MESSAGE(contains(replayed, "(found by the device after the call, in a replay: net.wte)"),
                replayed);
  CHECK(step(good_ids()).item<float>() == root.net(good_ids()).sum().item<float>());
  // An eager fault does not mention a replay; an op outside of modules names no module.
  const Tensor eager = root.net(bad_ids()).sum();
  CHECK(contains(error_of([&] { eager.item<float>(); }), "by the device after the call)"));
  const Tensor table = root.net.wte.weight.detach();
  auto plain = brrr::step([&](const Tensor& ids) { return embedding(table, ids).sum(); });
  for (int i = 0; i < 3; ++i) plain(good_ids());
  const Tensor nameless = plain(bad_ids());
  CHECK(contains(error_of([&] { nameless.item<float>(); }), "after the call, in a replay)"));
}

TEST_CASE("cuda step: BRRR_SYNC_AFTER_REPLAY: the step with the fault raises it") {
  if (!have_device()) return;
  const Env sync("BRRR_SYNC_AFTER_REPLAY", "1");
  Root root;
  auto step = brrr::step([&](const Tensor& ids) { return root.net(ids).sum(); });
  for (int i = 0; i < 3; ++i) step(good_ids());
  const std::string said = error_of([&] { step(bad_ids()); });
  CHECK_MESSAGE(contains(said, "embedding: index 9 is out of range"), said);
  CHECK_MESSAGE(contains(said, "in a replay: net.wte"), said);
  for (int i = 0; i < 3; ++i) {
    CHECK(step(good_ids()).item<float>() == root.net(good_ids()).sum().item<float>());
  }
  CHECK(step.stats().fallbacks == 0);
}

TEST_CASE("cuda step: a capture that fails says at which op") {
  const auto fail_at = emulated<void(int)>("brrr_emulator_fail");
  if (!have_device() || !fail_at) return;
  Root root;
  const Tensor expected = root.net(good_ids()).sum();
  std::string said;
  for (int node = 2; node < 6; ++node) {
    auto step = brrr::step([&](const Tensor& ids) { return root.net(ids).sum(); });
    step(good_ids());
    fail_at(node);  // The first call begins the capture.
    check_same(on_cpu(step(good_ids())), on_cpu(expected));
    fail_at(0);
    said += step.explain();
    check_same(on_cpu(step(good_ids())), on_cpu(expected));
    CHECK(step.stats().launches_per_replay == 1);  // The next capture worked.
  }
  CHECK_MESSAGE(contains(said, "1 replays without a capture: net.wte: embedding("), said);
  CHECK_MESSAGE(contains(said, "1 replays without a capture: net.head: linear("), said);
}

TEST_CASE("cuda step: pitfall D11: Mode::Auto times both on the device and says which it keeps") {
  if (!have_device()) return;
  auto run = [](Mode mode) {
    manual_seed(4);
    models::MLP model({.sizes = {6, 8, 3}, .activation = "relu"});
    model.to(kCUDA);
    optim::Adam opt(model.parameters(), {.lr = 1e-2});
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& y) {
          // Host data, so that the step's first storage is on the CPU.
          Tensor loss = cross_entropy(model(dropout(x.to(kCUDA), 0.2, true)), y);
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss * tensor({1.0, 0.5}).to(kCUDA).sum();
        },
        mode);
    Tensors values;
    const auto reads = [] { return counters() ? counters()->waits : 0; };
    const auto before = reads();
    for (int i = 0; i < 40; ++i) values.push_back(step(randn({4, 6}), randint(0, 3, {4}, kCUDA)));
    if (mode == Mode::Auto) {
      const std::string said = step.explain();
      keeps_the_faster(said);
      CHECK(step.stats().fallbacks == 0);
      CHECK(step.stats().replays >= 10);  // Half of the trials at least.
      // The queue is drained before and after each of the 20 trials, and never again.
      if (counters()) CHECK(reads() - before >= 40);
    }
    const auto decided = reads();
    step(randn({4, 6}), randint(0, 3, {4}, kCUDA));
    CHECK(reads() == decided);
    for (const Tensor& p : model.parameters()) values.push_back(p.detach());
    for (Tensor& t : values) t = on_cpu(t);
    return values;
  };
  check_same(run(Mode::Auto), run(Mode::Eager));
}

TEST_CASE("cuda step: pitfall E3: check_numerics names op, module and shapes in both modes") {
  if (!have_device()) return;
  for (Mode mode : {Mode::Eager, Mode::Graph}) {
    manual_seed(1);
    Root root;
    optim::SGD opt(root.parameters(), {.lr = 0.1});
    auto step = brrr::step(
        [&](const Tensor& ids, const Tensor& y) {
          Tensor loss = cross_entropy(root.net(ids), y.to(kCUDA));
          opt.zero_grad();
          loss.backward();
          opt.step();
          return loss.detach();
        },
        StepOptions{.mode = mode, .check_numerics = true});
    const Tensor y = tensor({0, 2});
    for (int i = 0; i < 3; ++i) CHECK(std::isfinite(step(good_ids(), y).item<float>()));
    const Tensor w = root.net.head.weight.detach().clone();
    root.net.bad = true;
    const std::string said = error_of([&] { step(good_ids(), y); });
    CHECK_MESSAGE(contains(said, "not finite"), said);
    CHECK_MESSAGE(contains(said, "net: log("), said);
    CHECK_MESSAGE(contains(said, "float32[2, 4]"), said);
    check_same(on_cpu(root.net.head.weight), on_cpu(w));
    root.net.bad = false;
    CHECK(std::isfinite(step(good_ids(), y).item<float>()));
  }
}

TEST_CASE("cuda step: pitfall E3: check_numerics waits for the device before it looks") {
  if (!have_device() || !counters()) return;
  auto step = brrr::step([](const Tensor& x) { return x.exp().sum(); },
                         StepOptions{.check_numerics = true});
  const Tensor x = randn({4}, kCUDA);
  const auto before = counters()->waits;
  step(x);
  CHECK(counters()->waits - before == 2);  // One for each op.
}

TEST_CASE("cuda step: a tensor made on another device is a difference that is named") {
  if (!have_device()) return;
  Device device = kCUDA;
  auto step = brrr::step([&] { return zeros({3}, kFloat32, device); },
                         StepOptions{.on_new_entry = Policy::Error});
  step();
  device = kCPU;
  CHECK_THROWS_WITH_AS(step(), doctest::Contains("attributes differ: op 0"), Error);
}

TEST_CASE("cuda: a trace of kernels on both devices has them in the order in which they ran") {
  if (!have_device()) return;
  const Tensor here = ones({64}), there = ones({64}, kCUDA);
  exp(there);
  synchronize();
  const TemporaryDirectory folder;
  const std::string path = std::string(folder.path) + "/trace.json";
  Profile profile;
  exp(there);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  sin(here);
  profile.write_trace(path);
  std::ifstream in(path);
  const auto trace = nlohmann::json::parse(in);
  std::string names;
  for (const auto& e : trace["traceEvents"]) {
    if (e["ph"] != "X" || e["tid"] == 1) continue;
    CHECK(e["dur"].get<double>() >= 0);
    names += e["name"].get<std::string>() + ' ';
  }
  CHECK(names == "exp sin outside of modules ");
}

TEST_CASE("cuda step: explain and dot show a step on the device") {
  if (!have_device()) return;
  Root root;
  auto step =
      brrr::step([&](const Tensor& ids) { return (root.net(ids.to(kCUDA)).exp() * 2.0).sum(); });
  for (int i = 0; i < 3; ++i) step(tensor({1, 2}));
  const std::string said = step.explain();
  for (const char* part :
       {"captured 1 times", "nodes", "inputs copied 0", "uploaded a replay", "net.wte: embedding",
        "net.head: linear", "host_data", "exp mul", "generated"}) {
    CHECK_MESSAGE(contains(said, part), part, "\n", said);
  }
  const std::string dot = step.dot();
  for (const char* part : {"digraph step {", "host_data", "embedding", "cluster_", "output"}) {
    CHECK_MESSAGE(contains(dot, part), part, "\n", dot);
  }
  CHECK(dot.back() == '\n');
  CHECK(contains(step.source(), "exp mul:\nstruct A_brrr_k0 {"));
}
