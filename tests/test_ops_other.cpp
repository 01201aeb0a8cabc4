// The cases of library_cases.h: gradients against finite differences, float32 against float64,
// layouts, graph mode against eager mode. A row without a case fails.

#include <algorithm>

#include "ops/library_ops.h"
#include "tests/library_cases.h"

using namespace brrr;
using namespace brrr::test;

TEST_CASE("other rows: each has a case") {
  const auto cases = all_cases();
  for (const OpDef* op : registry()) {
    if (op->kind == OpKind::Reduction || op->gradient_row) continue;
    if (op->kind == OpKind::Pointwise && !takes_positions(*op)) continue;
    const bool covered = std::any_of(cases.begin(), cases.end(), [&](const Case& c) {
      return std::string(c.covers) == op->name;
    });
    CHECK_MESSAGE(covered, std::string(op->name), " has no case in library_cases.cpp");
  }
}

TEST_CASE("other rows: gradients of both orders agree with finite differences") {
  for (const Case& c : function_cases()) {
    CAPTURE(std::string(c.covers));
    if (!c.fn(inputs_of(c, kFloat64)).requires_grad()) continue;
    const auto r = gradcheck(c.fn, c.in, {.tolerance = 5e-6, .second_order = true});
    CHECK_MESSAGE(r.ok, r.report);
  }
}

TEST_CASE("other rows: float32 agrees with float64") {
  for (const Case& c : function_cases()) {
    CAPTURE(std::string(c.covers));
    const Tensor y = c.fn(inputs_of(c, kFloat32)), want = c.fn(inputs_of(c, kFloat64));
    CHECK(y.dtype() == (is_floating(want.dtype()) ? kFloat32 : want.dtype()));
    check_close(y, want, 2e-5);
  }
}

TEST_CASE("other rows: operands in other layouts give the same bits") {
  for (const Case& c : function_cases()) {
    CAPTURE(std::string(c.covers));
    if (std::string(c.covers) == "as_strided") continue;  // Its result depends on strides.
    const Tensors in = inputs_of(c, kFloat32);
    for (Layout l : {Layout::Transposed, Layout::Sliced, Layout::Offset}) {
      Tensors other;
      for (const Tensor& x : in) {
        const bool matrix = x.dim() == 2;
        other.push_back(matrix ? laid_out(x.detach(), l)
                        : x.dim() > 2 && l == Layout::Sliced
                            ? cat({x.detach(), x.detach()}, -1).narrow(-1, 0, x.size(-1))
                            : x);
      }
      // Some cases use view(), which may reject a layout with a message.
      const std::string error =
          error_of([&] { check_same(c.fn(other).detach(), c.fn(in).detach()); });
      CHECK_MESSAGE((error.empty() || error.find("view: strides") == 0), error);
    }
  }
}

TEST_CASE("other rows: graph mode equals eager mode, forward and backward") {
  for (DType t : {kFloat32, kBFloat16, kFloat64}) {
    if (t == kFloat64 && !long_tests()) continue;
    struct Bound {
      const Case* c;
      Tensors in;
    };
    const auto cases = all_cases();
    std::vector<Bound> bound;
    for (const Case& c : cases) {
      // Short tests run every case in one of the two dtypes.
      const size_t turn = static_cast<size_t>(&c - cases.data()) + (t == kBFloat16);
      if (turn % 2 == 0 || long_tests()) bound.push_back({&c, inputs_of(c, t)});
    }
    check_step([&](Results& r) {
      for (size_t i = 0; i < bound.size(); ++i) {
        const std::string name = fmt::format("{} (case {})", bound[i].c->covers, i);
        add_with_gradients(r, name, bound[i].c->fn(bound[i].in), bound[i].in);
      }
    });
  }
}

TEST_CASE("view: a dim of size 1 does not split a contiguous run") {
  const Tensor x = sampled({3, 1, 8}, kFloat32).slice(2, 0, 8, 2);
  CHECK(x.view({12}).strides() == IntList{2});
  CHECK(x.reshape({2, 6}).strides() == IntList{12, 2});
  check_same(x.view({12}), x.contiguous().view({12}));
}

TEST_CASE("elu: the second derivative is 0 where exp(x) is infinite") {
  for (DType t : {kFloat32, kFloat64}) {
    const Tensor x = tensor({1.0, 100.0, 1e4, 1e30, HUGE_VAL}).to(t).set_requires_grad();
    const Tensor first = grad({elu(x).sum()}, {x}, {.create_graph = true})[0];
    CHECK(same_bits(first, ones({5}, t)));
    CHECK(same_bits(grad({first.sum()}, {x})[0], zeros({5}, t)));
  }
}

TEST_CASE("cat: a list of any length is promoted to one dtype, and errors name its tensors") {
  std::vector<Tensor> all(128, full({1}, 257, kInt64));
  all[0] = zeros({1}, kBFloat16);
  all.push_back(zeros({1}));
  CHECK(cat(all).dtype() == kFloat32);
  CHECK(cat(all).to_vector<float>()[1] == 257);
  std::vector<Tensor> parts(200, zeros({2, 3}));
  for (size_t i = 150; i < 200; ++i) parts[i] = zeros({2, 4});
  CHECK(error_of([&] { cat(parts, 0); }).find("[2, 3] and [2, 4] (tensor 150)") !=
        std::string::npos);
  CHECK(cat(parts, 1).sizes() == IntList{2, 650});
}

TEST_CASE("minimum, maximum: no infinite gradient reaches the operand that is not chosen") {
  const auto first = [](auto f) {
    Tensor x = tensor({-1.0f, 4.0f}).set_requires_grad(true);
    f(x).sum().backward();
    return x.grad();
  };
  const Tensor half = tensor({0.0f, 0.25f});
  CHECK(same_bits(abs(first([](const Tensor& x) { return sqrt(maximum(x, 0.0)); })), half));
  CHECK(same_bits(abs(first([](const Tensor& x) { return sqrt(maximum(x, zeros({2}))); })), half));
  CHECK(
      same_bits(abs(first([](const Tensor& x) { return sqrt(-minimum(-x, zeros({2}))); })), half));
  const Tensor x =
      tensor({-1.0f, 4.0f}).set_requires_grad();  // Nor of the first gradient, 0 and 1.
  for (const Tensor& y : {maximum(x, 0.0), maximum(zeros({2}), x), -minimum(-x, zeros({2}))}) {
    const Tensor g = grad({y.sum()}, {x}, {.create_graph = true})[0];
    CHECK(abs(grad({sqrt(g).sum()}, {x})[0]).sum().item<float>() == 0);
  }
}

TEST_CASE("logsumexp: both derivatives of a row without a finite number are 0, whatever the dim") {
  for (const int64_t dim : {0, 1}) {
    const Tensor x = full({dim ? 1 : 2, dim ? 2 : 1}, -INFINITY).set_requires_grad(true);
    const Tensor g = grad({x.logsumexp({dim}).sum()}, {x}, {.create_graph = true})[0];
    CHECK(g.abs().sum().item<float>() == 0);
    CHECK(grad({g.sum()}, {x})[0].abs().sum().item<float>() == 0);
  }
}
