// The cases of library_cases.h on the device: values and gradients against the CPU's.

#include "ops/library_ops.h"
#include "tests/cuda_cases.h"
#include "tests/library_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

// For sums in another order, and roundings to t that go the other way.
double tolerance(DType t) {
  switch (t) {
    case kFloat64:
      return 1e-12;
    case kFloat32:
      return 2e-5;
    case kFloat16:
      return 8e-3;
    default:
      return 6e-2;
  }
}

Results run(const Case& c, const Tensors& in) {
  manual_seed(11);
  Results r;
  const Tensor y = c.fn(in);
  r.add("value", y);
  if (!y.requires_grad()) return r;
  Tensors at;
  for (const Tensor& t : in) {
    if (t.requires_grad()) at.push_back(t);
  }
  const Tensor weights = sampled(y.sizes(), kFloat32, 0.3, 1.7, 5).to(y.dtype()).to(y.device());
  const Tensors g = grad({y}, at, {.allow_unused = true}, {weights});
  for (size_t i = 0; i < g.size(); ++i) r.add(fmt::format("gradient {}", i), g[i]);
  return r;
}

void check_results(const Results& got, const Results& want, DType t) {
  REQUIRE(got.names == want.names);
  for (size_t i = 0; i < got.values.size(); ++i) {
    const Tensor &a = got.values[i], &b = want.values[i];
    CAPTURE(got.names[i]);
    REQUIRE(a.defined() == b.defined());
    if (!a.defined()) continue;
    CHECK(a.device() == kCUDA);
    REQUIRE(a.dtype() == b.dtype());
    if (is_floating(a.dtype()))
      check_close(on_cpu(a), b, tolerance(t));
    else
      check_same(on_cpu(a), b);
  }
}

}  // namespace

TEST_CASE("cuda: views, library ops, composites, factories and draws") {
  if (!have_device()) return;
  const std::vector<Case> cases = all_cases();
  for (DType t : {kFloat32, kBFloat16, kFloat64, kFloat16}) {
    if ((t == kFloat64 || t == kFloat16) && !long_tests()) continue;
    CAPTURE(std::string(name(t)));
    std::vector<Tensors> moved;
    std::vector<Results> want;
    {
      KernelsNeeded needed;
      for (const Case& c : cases) {
        const Tensors in = inputs_of(c, t);
        moved.push_back(on_gpu(in));
        want.push_back(run(c, in));
      }
      build_all(kernels_of(needed.calls));
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(std::string(cases[i].covers));
      CAPTURE(i);
      check_results(run(cases[i], moved[i]), want[i], t);
    }
  }
}

TEST_CASE("cuda: linear adds its bias as a separate add does") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kBFloat16, kFloat64, kFloat16}) {
    for (int64_t n : {1, 3, 8, 10, 13, 64, 96}) {
      for (int64_t rows : {1, 5, 33}) {
        CAPTURE(n);
        CAPTURE(rows);
        const Tensor x = on_gpu(sampled({rows, 16}, t)), w = on_gpu(sampled({n, 16}, t, -2, 2, 3));
        const Tensor all = on_gpu(sampled({n + 1}, t, -2, 2, 5));
        for (int64_t from : {0, 1}) {  // The second bias is misaligned for vector loads.
          const Tensor b = all.slice(0, from, from + n);
          CHECK(device_difference(linear(x, w, b), on_cpu(linear(x, w) + b)) == "");
        }
      }
    }
  }
}
