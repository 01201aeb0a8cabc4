// The cases of library_cases.h as steps on the device: replays beside eager runs, to the last bit.
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

// Whether the case can be a step: some compute on the CPU what they then move.
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
  for (bool fuse : {false, true}) {
    CAPTURE(fuse);
    size_t replayed = 0;
    const std::vector<Case> cases = all_cases();
    for (const Case& c : cases) {
      CAPTURE(std::string(c.covers));
      replayed += replays_eagers_bits(c, fuse);
    }
    CHECK(replayed + 10 > cases.size());
  }
}
