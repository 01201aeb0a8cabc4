// Matrix products on the device with operands at any address: cublasLt takes only addresses that
// are multiples of 16 bytes.

#include <cstring>
#include <functional>

#include "brrr.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

double tolerance(DType t) {
  return t == kFloat64 ? 1e-12 : t == kFloat32 ? 2e-5 : t == kFloat16 ? 8e-3 : 6e-2;
}

// A view that begins `by` elements into an aligned storage.
Tensor shifted(const IntList& sizes, DType t, int64_t by = 1) {
  const int64_t n = numel_of(sizes);
  return sampled({n + by}, kFloat32, -1, 1, static_cast<int>(n))
      .to(t)
      .slice(0, by, n + by)
      .view(sizes);
}

struct Case {
  const char* name;
  Tensors in;
  std::function<Tensor(const Tensors&)> fn;
};

std::vector<Case> cases(DType t) {
  const auto base = [&](const IntList& sizes) {
    return sampled(sizes, kFloat32, -1, 1, static_cast<int>(sizes.back())).to(t);
  };
  const auto product = [](const Tensors& in) { return matmul(in[0], in[1]); };
  const auto with_bias = [](const Tensors& in) { return linear(in[0], in[1], in[2]); };
  const Tensor w = base({5, 8}), b = base({5});
  const Tensor rows = base({4, 9, 7}), heads = base({2, 3, 5, 7});
  std::vector<Case> all = {
      {"narrow", {base({2, 5, 12}).narrow(2, 1, 8), w, b}, with_bias},
      {"slice", {base({2, 7, 8}).slice(1, 1, 6), w, b}, with_bias},
      {"slice of odd rows", {base({2, 7, 3}).slice(1, 1, 6), base({3, 4})}, product},
      {"one batch", {base({1, 7, 3}).slice(1, 1, 6), base({3, 4})}, product},
      {"select", {base({3, 5, 7}).select(0, 1), base({7, 4})}, product},
      {"select of four dims", {base({3, 2, 5, 7}).select(0, 1), base({7, 4})}, product},
      {"shifted", {shifted({2, 3, 8}, t), shifted({5, 8}, t), shifted({5}, t)}, with_bias},
      {"transposed", {shifted({6, 4}, t).t(), shifted({7, 6}, t).t()}, product},
      {"vectors", {shifted({7}, t), shifted({7}, t)}, product},
      {"vector and matrix", {shifted({7}, t), shifted({7, 3}, t)}, product},
      {"batch", {rows.slice(1, 1, 6), base({4, 7, 3})}, product},
      {"shared factor", {base({2, 7}).slice(0, 1, 2), rows.transpose(1, 2)}, product},
      {"uneven batch", {heads.transpose(1, 2).slice(2, 1, 3), shifted({7, 4}, t)}, product},
      {"batches of both", {heads.slice(2, 1, 4), heads.slice(2, 2, 5).transpose(2, 3)}, product},
      {"one index in between",
       {base({2, 1, 5, 3, 3}).slice(2, 0, 3), base({2, 1, 3, 3, 3})},
       product},
      {"keys of several queries", {base({3, 1, 1, 9, 1}), base({3, 1, 2, 1, 3})}, product},
      {"long batch", {shifted({1100, 1, 3}, t), shifted({1100, 3, 1}, t)}, product},
      {"einsum",
       {rows.slice(1, 1, 4), shifted({4, 7, 5}, t)},
       [](const Tensors& in) { return einsum("bij,bjk->bik", in); }},
  };
  for (const Tensor& part : rows.chunk(4, 1))
    all.push_back({"chunk", {part, base({7, 2})}, product});
  return all;
}

Tensors leaves(const Tensors& in) {
  Tensors all;
  for (const Tensor& t : in) all.push_back(t.detach().set_requires_grad(true));
  return all;
}

// The result and all gradients; the incoming gradient is misaligned too.
Tensors results(const Case& c, const Tensors& in) {
  const Tensor y = c.fn(in);
  const Tensor g = shifted(y.sizes(), y.dtype()), there = y.device() == kCPU ? g : on_gpu(g);
  Tensors all = grad({y}, in, {}, {there});
  all.push_back(y.detach());
  return all;
}

}  // namespace

TEST_CASE("cuda: products of operands that are not aligned, and their gradients") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
    CAPTURE(std::string(name(t)));
    for (const Case& c : cases(t)) {
      CAPTURE(std::string(c.name));
      const Tensors want = results(c, leaves(c.in)), got = results(c, leaves(on_gpu(c.in)));
      REQUIRE(got.size() == want.size());
      for (size_t k = 0; k < got.size(); ++k) check_close(on_cpu(got[k]), want[k], tolerance(t));
    }
  }
}

TEST_CASE("cuda step: products of operands that are not aligned") {
  if (!have_device()) return;
  for (const Case& c : cases(kFloat32)) {
    CAPTURE(std::string(c.name));
    const Tensors in = on_gpu(c.in);
    const StepOptions replayed{.require_graph = true};
    const auto with = [&](Tensors given) {
      given.resize(in.size());
      for (size_t k = 0; k < in.size(); ++k) {
        if (!given[k].defined()) given[k] = in[k];
      }
      return c.fn(given);
    };
    auto step = brrr::step(
        [&](const Tensor& x, const Tensor& w) {
          return with({x, w});
        },
        replayed);
    const Tensor& x = in[0];
    const auto held = static_cast<int64_t>(x.impl()->storage->bytes / itemsize(x.dtype()));
    const Tensor whole = as_strided(x, {held}, {1}, 0);
    auto inside = brrr::step(
        [&](const Tensor& all) {
          return with({as_strided(all, x.sizes(), x.strides(), x.storage_offset())});
        },
        replayed);
    const Tensor want = on_cpu(c.fn(in));
    for (int i = 0; i < 3; ++i) {
      check_same(on_cpu(step(in[0], in[1])), want);
      check_same(on_cpu(inside(whole)), want);
    }
    for (const StepStats& s : {step.stats(), inside.stats()}) {
      CHECK(s.launches_per_replay == 1);
      CHECK_MESSAGE(s.fallbacks == 0, s.last_fallback);
    }
  }
}

TEST_CASE("cuda attention step: gradients are written into their concatenation, at any offset") {
  if (!have_device()) return;
  for (const DType t : {kFloat32, kBFloat16}) {
    CAPTURE(static_cast<int>(t));
    manual_seed(5);
    const Tensor g = randn({2, 2, 33, 33}).to(t).to(kCUDA);
    const auto joined = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      Tensors in;
      for (const Tensor& x : {q, k, v}) in.push_back(x.detach().set_requires_grad());
      const Tensor y = scaled_dot_product_attention(in[0], in[1], in[2]);
      const Tensors d = grad({y}, in, {}, {g});
      return cat({d[2], d[0], d[1]}, -1);
    };
    const Tensor q = randn({2, 2, 33, 64}).to(t).to(kCUDA), k = q * 0.5, v = g * 0.7;
    auto step = brrr::step(joined, StepOptions{.require_graph = true});
    const Tensor want = joined(q, k, v);
    for (int call = 0; call < 3; ++call) CHECK(same_bits(step(q, k, v), want));
  }
}

TEST_CASE("cuda step: results of a replay have no gaps that kernels may write to") {
  if (!have_device()) return;
  const auto values = [](const IntList& sizes) { return randn(sizes).to(kBFloat16).to(kCUDA); };
  const Tensor x = values({32, 16}), w = values({16, 60}), v = values({60, 40}),
               t = values({32, 64});
  auto twice = brrr::step([](const Tensor& a) { return a * 2.0; }, Mode::Graph);
  for (int call = 0; call < 3; ++call) twice(t);
  {
    // The rows of its temporary have a pitch of 128 bytes: the storage is marked as having gaps,
    // and is reused once the temporary dies.
    auto padded = brrr::step([&] { return matmul(relu(matmul(x, w)), v).sum(); }, Mode::Graph);
    for (int call = 0; call < 3; ++call) padded();
  }
  std::vector<Tensor> results;
  for (int call = 0; call < 64; ++call) results.push_back(twice(t));
  for (const Tensor& r : results) {
    uint8_t gaps = 0;
    std::memcpy(&gaps, &r.impl()->storage->gaps, 1);
    CHECK(gaps == 0);
  }
}
