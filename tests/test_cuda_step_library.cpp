// The cases of library_cases.h as steps on the device: replays equal eager runs, to the last bit.
#include "brrr.h"
#include "tests/cuda_cases.h"
#include "tests/library_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// The value of a case, and its gradients.
Tensors results_of(const Case& c, const Tensors& in) {
  Tensors all{c.fn(in)}, at;
  if (!all[0].requires_grad()) return all;
  for (const Tensor& t : in) {
    if (t.requires_grad()) at.push_back(t);
  }
  for (const Tensor& g : grad({all[0].square().sum()}, at, {.allow_unused = true})) {
    if (g.defined()) all.push_back(g);
  }
  all[0] = all[0].detach();
  return all;
}

// Builds the kernels of eager runs together: one by one each would start the compiler.
void build_at_once(const std::vector<Case>& cases) {
  KernelsNeeded needed;
  for (const Case& c : cases) results_of(c, inputs_of(c, kFloat32));
  std::vector<KernelText> all = kernels_of(needed.calls);
  all.insert(all.end(), needed.rows.begin(), needed.rows.end());
  build_all(all);
}

// Checks the case as a step; false if it cannot be one, as it moves a tensor computed on the CPU.
bool replays_eagers_bits(const Case& c, bool fuse) {
  const Tensors in = on_gpu(inputs_of(c, kFloat32));
  auto step = brrr::step([&] { return results_of(c, in); },
                         StepOptions{.require_graph = true, .fuse = fuse});
  for (uint64_t call = 0; call < 3; ++call) {
    manual_seed(call);
    const Tensors want = results_of(c, in);
    manual_seed(call);
    Tensors got;
    const std::string failed = error_of([&] { got = step(); });
    if (failed.find("is computed on the CPU inside a graph-mode step") != failed.npos) return false;
    REQUIRE_MESSAGE(failed.empty(), failed);
    REQUIRE(got.size() == want.size());
    for (size_t k = 0; k < got.size(); ++k) check_same(on_cpu(got[k]), on_cpu(want[k]));
  }
  CHECK(step.stats().recordings == 1);
  CHECK(step.stats().replays == 2);
  return true;
}

}  // namespace

TEST_CASE("cuda step: views, library ops, composites, factories and draws, eager's bits") {
  if (!have_device()) return;
  const std::vector<Case> cases = all_cases();
  build_at_once(cases);
  for (bool fuse : {false, true}) {
    CAPTURE(fuse);
    size_t replayed = 0;
    for (const Case& c : cases) {
      CAPTURE(std::string(c.covers));
      replayed += replays_eagers_bits(c, fuse);
    }
    CHECK(replayed + 10 > cases.size());
  }
}

// Logits of an odd number of classes and their gradient, which three products read, and a weight
// with as many rows and its gradient, which only products read.
TEST_CASE("cuda step: temporaries have a pitch that products take, eager's bits") {
  if (!have_device()) return;
  const int64_t batch = 4, length = 256, width = 520, classes = 1025;
  manual_seed(5);
  const Tensor x = (randn({batch, length, width}) * 0.1).to(kBFloat16).to(kCUDA);
  const Tensor w = (randn({classes, width}) * 0.1).to(kCUDA);
  const Tensor ids = randint(0, classes, {batch * length}).to(kCUDA);
  x.set_requires_grad();
  w.set_requires_grad();
  const auto body = [&] {
    const Tensor logits = linear(x, w.to(kBFloat16)).view({batch * length, classes});
    const Tensor loss = cross_entropy(logits.to(kFloat32), ids);
    const Tensors all = grad({loss}, {x, w});
    return Tensors{loss.detach(), all[0], all[1]};
  };
  const Tensors want = body();
  for (const bool fuse : {true, false}) {
    auto step = brrr::step(body, StepOptions{.require_graph = true, .fuse = fuse});
    for (int call = 0; call < 3; ++call) {
      const Tensors got = step();
      for (size_t k = 0; k < got.size(); ++k) check_same(on_cpu(got[k]), on_cpu(want[k]));
    }
    CHECK(step.stats().replays == 2);
    INFO(step.explain());
    CHECK((step.explain().find("4 temporaries") != std::string::npos) == fuse);
  }
}

// Where TF32 is allowed, float32 products read 16 bytes at a time, so rows are padded; a reader of
// a slice of the logits does not support that.
TEST_CASE("cuda step: rows are not padded for readers that do not support it") {
  if (!have_device()) return;
  const bool before = allow_tf32();
  set_allow_tf32(true);
  manual_seed(6);
  const Tensor x = randn({1024, 520}).to(kCUDA), w = randn({1025, 520}).to(kCUDA);
  const auto step_of = [&](const auto& use) {
    const auto body = [&] { return use(linear(x, w)); };
    auto step = brrr::step(body, StepOptions{.require_graph = true});
    const Tensor want = body();
    for (int call = 0; call < 3; ++call) check_same(on_cpu(step()), on_cpu(want));
    return step.explain().find("temporaries,") != std::string::npos;
  };
  CHECK(step_of([](const Tensor& y) { return softmax(y, 1).sum(0); }));
  CHECK(!step_of([](const Tensor& y) { return sort(y, 1).first.sum(0); }));
  CHECK(!step_of([](const Tensor& y) { return (y.narrow(1, 1, 600) * 2).sum(0); }));
  CHECK(!step_of([](const Tensor& y) { return relu(y.view({1025, 1024})).sum(1); }));
  set_allow_tf32(before);
}

TEST_CASE("cuda step: products keep the recorded TF32 setting, however they are launched") {
  if (!have_device()) return;
  const bool before = allow_tf32();
  manual_seed(7);
  const Tensor x = randn({1024, 520}).to(kCUDA), w = randn({1025, 520}).to(kCUDA);
  const auto body = [&] { return softmax(linear(x, w), 1).sum(0); };
  for (const bool recorded : {true, false}) {
    set_allow_tf32(recorded);
    auto step = brrr::step(body, StepOptions{.require_graph = true});
    const Tensor want = on_cpu(body());
    check_same(on_cpu(step()), want);
    for (const bool now : {recorded, !recorded, recorded, !recorded}) {
      set_allow_tf32(now);
      check_same(on_cpu(step()), want);
      Profile watched;  // Runs the step kernel by kernel.
      check_same(on_cpu(step()), want);
    }
  }
  set_allow_tf32(before);
}
