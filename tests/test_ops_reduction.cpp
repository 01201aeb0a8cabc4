// Every reduction row of the registry, without naming one: values against the oracle, gradients
// against differences, layouts, threads, special values, and graph mode against eager mode.

#include <limits>

#include "backends/cpu/pool.h"
#include "ops/reduction.h"
#include "ops/reduction_ops.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Below, at and beyond one vector, four vectors, a block of rows and a chunk.
const std::vector<IntList> kShapes = {{},        {1},         {5},         {16},     {17},
                                      {64},      {67},        {5000},      {3, 4},   {7, 33},
                                      {3, 4100}, {33, 7},     {130, 600},  {700, 3}, {2, 3, 5},
                                      {3, 1, 4}, {5, 70, 18}, {2, 3, 4, 5}};

std::vector<IntList> dims_of(int ndim) {
  std::vector<IntList> all = {IntList{}};  // No dims: all of them.
  for (int mask = 1; mask < 1 << ndim; ++mask) {
    IntList dims;
    for (int d = ndim - 1; d >= 0; --d) {
      if (mask >> d & 1) dims.push_back(mask % 3 ? d : d - ndim);  // Any order, negative too.
    }
    all.push_back(dims);
  }
  return all;
}

// The elements of each output in order: x with the kept dims first.
std::vector<std::vector<double>> groups(const Tensor& x, const IntList& dims) {
  const int64_t mask = reduction_mask("test", x, dims);
  IntList order, kept;
  for (int reduced = 0; reduced < 2; ++reduced) {
    for (int d = 0; d < x.dim(); ++d) {
      if ((mask >> d & 1) == reduced) order.push_back(d);
      if (!reduced && !(mask >> d & 1)) kept.push_back(x.size(d));
    }
  }
  const auto outputs = static_cast<size_t>(numel_of(kept));
  const auto all = (x.dim() ? x.permute(order) : x).to(kFloat64).to_vector<double>();
  std::vector<std::vector<double>> g(outputs);
  const size_t n = outputs ? all.size() / outputs : 0;
  for (size_t i = 0; i < outputs; ++i) {
    g[i].assign(all.begin() + static_cast<long>(i * n), all.begin() + static_cast<long>(i * n + n));
  }
  return g;
}

// Roundings of n operations on values of like size add up to about sqrt(n) units; magnitude is the
// same reduction of the absolute values, where nothing cancels.
bool acceptable(double got, double want, double magnitude, size_t n, DType t) {
  if (std::isnan(want) || std::isinf(want)) {
    return std::isnan(want) ? std::isnan(got) : got == want;
  }
  const double eps = t == kFloat64 ? 0x1p-52 : 0x1p-23, tiny = t == kFloat64 ? 0 : 0x1p-140;
  const double units = 2 + 2 * std::sqrt(static_cast<double>(n));
  return std::fabs(got - want) <= units * eps * std::max(magnitude, std::fabs(want)) + tiny;
}

void check_oracle(const OpDef& op, const Tensor& x, const IntList& dims, bool keepdim) {
  CAPTURE(to_string(x.sizes()));
  CAPTURE(to_string(dims));
  const ReductionInfo& info = *op.reduction;
  const Tensor y = reduce(op, x, dims, keepdim);
  REQUIRE(y.sizes() == reduced_sizes(x.sizes(), reduction_mask("test", x, dims), keepdim));
  const auto got = y.to(kFloat64).to_vector<double>();
  const auto rows = groups(x, dims);
  REQUIRE(got.size() == rows.size());
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<double> size = rows[i];
    for (double& v : size) v = std::fabs(v);
    const auto n = static_cast<int64_t>(size.size());
    const double want = info.oracle(rows[i].data(), n), magnitude = info.oracle(size.data(), n);
    const bool ok = is_floating(y.dtype())
                        ? acceptable(got[i], want, magnitude, size.size(), x.dtype())
                        : got[i] == want;
    if (!ok) CHECK_MESSAGE(ok, "output ", i, ": ", got[i], ", oracle ", want);
  }
}

Tensor values_for(const OpDef& op, const IntList& sizes, DType t, int salt = 0) {
  const ReductionTraits& traits = op.reduction->traits;
  return sampled(sizes, t, traits.lo, traits.hi, salt);
}

bool has_kernel(const OpDef& op, DType t) {
  return error_of([&] { reduce(op, ones({2}, t), {}, false); }).empty();
}

// The same values, stored with the dims in reverse order, or with gaps and an offset.
Tensor reversed(const Tensor& t) {
  IntList order;
  for (int64_t d = t.dim() - 1; d >= 0; --d) order.push_back(d);
  return t.dim() ? t.permute(order).clone().permute(order) : t;
}
Tensor with_gaps(const Tensor& t) {
  if (t.dim() == 0) return t;
  IntList sizes = t.sizes();
  sizes[static_cast<int>(t.dim()) - 1] = 2 * sizes.back() + 3;
  return zeros(sizes, t.dtype()).slice(-1, 3, sizes.back(), 2).copy_(t);
}

struct Threads {
  int before = cpu::num_threads();
  ~Threads() { cpu::set_num_threads(before); }
};

}  // namespace

TEST_CASE("reduction rows: values agree with the oracle") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (const IntList& shape : kShapes) {
      for (const IntList& dims : dims_of(shape.size())) {
        check_oracle(*op, values_for(*op, shape, kFloat32), dims, false);
      }
    }
    for (DType t : {kFloat64, kInt64, kInt32, kUInt8, kBool}) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& shape : {IntList{}, {9}, {2, 3, 5}, {3, 1, 4}}) {
        for (const IntList& dims : dims_of(shape.size())) {
          check_oracle(*op, values_for(*op, shape, t), dims, true);
        }
      }
    }
  }
}

TEST_CASE("reduction rows: NaN, infinities and zeros in any place") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (int64_t n : {3, 16, 17, 64, 90, 200}) {
      for (double special : {kNaN, kInf, -kInf, 0.0}) {
        for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
          for (DType t : {kFloat32, kFloat64}) {
            const Tensor x = values_for(*op, {n, 3}, t);
            x.select(0, at).fill_(special);
            if (at > 0 && special == kInf) x.select(0, 0).fill_(-special);
            check_oracle(*op, x, {0}, false);
            check_oracle(*op, x.t().contiguous(), {1}, false);
          }
        }
      }
      check_oracle(*op, zeros({n, 2}), {0}, false);
      check_oracle(*op, full({n}, kNaN), {0}, false);
    }
  }
}

TEST_CASE("reduction rows: nothing to reduce") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    const Tensor x = zeros({2, 0, 3});
    CHECK(reduce(*op, x, {0}, false).sizes() == IntList{0, 3});
    if (op->reduction->traits.needs_elements) {
      const std::string error = error_of([&] { reduce(*op, x, {1}, false); });
      CHECK_MESSAGE(error.find(op->name) == 0, error);
    } else {
      check_oracle(*op, x, {1}, false);
      check_oracle(*op, x, {}, true);
    }
  }
}

TEST_CASE("reduction rows: wrong dims throw, naming the op") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    for (const IntList& dims : {IntList{2}, IntList{-3}, IntList{0, 0}, IntList{1, -1}}) {
      const std::string error = error_of([&] { reduce(*op, ones({2, 3}), dims, false); });
      CHECK_MESSAGE(error.find(op->name) == 0, std::string(op->name), ": ", error);
    }
  }
}

TEST_CASE("reduction rows: gradients of both orders agree with differences") {
  struct Case {
    IntList sizes, dims;
    bool keepdim;
  };
  const Case cases[] = {{{3, 4}, {}, false},        {{3, 4}, {0}, true},    {{3, 4}, {1}, false},
                        {{2, 3, 2}, {0, 2}, false}, {{2, 3, 2}, {1}, true}, {{}, {}, false},
                        {{5, 1}, {1}, false}};
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    if (!op->differentiable()) continue;
    CAPTURE(std::string(op->name));
    for (const Case& c : cases) {
      auto fn = [&](const Tensors& in) { return reduce(*op, in[0], c.dims, c.keepdim); };
      const Tensor x = values_for(*op, c.sizes, kFloat64);
      const auto r = gradcheck(fn, {x}, {.tolerance = 2e-6, .second_order = true});
      CHECK_MESSAGE(r.ok, to_string(c.sizes), " ", to_string(c.dims), ": ", r.report);
    }
  }
}

TEST_CASE("reduction rows: layouts do not change a bit, nor does widening first") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kBFloat16, kFloat16, kInt64, kUInt8}) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& shape : kShapes) {
        for (const IntList& dims : dims_of(shape.size())) {
          const Tensor x = values_for(*op, shape, t), y = reduce(*op, x, dims, false);
          check_same(reduce(*op, reversed(x), dims, false), y);
          check_same(reduce(*op, with_gaps(x), dims, false), y);
          if (itemsize(t) == 2) {
            check_same(reduce(*op, x.to(kFloat32), dims, false).to(y.dtype()), y);
          }
        }
      }
      const Tensor row = values_for(*op, {1, 67}, t), wide = row.expand({40, 67});
      for (const IntList& dims : dims_of(2)) {
        check_same(reduce(*op, wide, dims, true), reduce(*op, wide.clone(), dims, true));
      }
    }
  }
}

TEST_CASE("reduction rows: the number of threads does not change a bit") {
  const Threads restore;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (const IntList& shape :
         {IntList{300000}, {3, 100000}, {100000, 3}, {500, 700}, {9, 301, 99}}) {
      for (DType t : {kFloat32, kBFloat16}) {
        const Tensor x = values_for(*op, shape, t);
        for (const IntList& dims : dims_of(shape.size())) {
          cpu::set_num_threads(1);
          const Tensor one = reduce(*op, x, dims, false);
          cpu::set_num_threads(2);
          check_same(reduce(*op, x, dims, false), one);
          cpu::set_num_threads(5);
          check_same(reduce(*op, x, dims, false), one);
        }
      }
    }
  }
}

TEST_CASE("reduction rows: ties share a gradient evenly") {
  const Tensor x = tensor({{3.f, 1.f, 3.f}, {1.f, 1.f, 1.f}}).set_requires_grad(true);
  amax(x, 1).sum().backward();
  check_same(x.grad(), tensor({{0.5f, 0.f, 0.5f}, {1.f / 3, 1.f / 3, 1.f / 3}}));
}

TEST_CASE("reduction rows: graph mode equals eager mode, forward and backward") {
  for (DType t : {kFloat32, kBFloat16, kFloat64, kInt64}) {
    struct Case {
      const OpDef* op;
      Tensor x;
      IntList dims;
      bool keepdim;
    };
    std::vector<Case> cases;
    for (const OpDef* op : rows_of(OpKind::Reduction)) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& shape : {IntList{}, {7, 33}, {70, 9}, {3, 4100}, {4, 5, 18}}) {
        for (const IntList& dims : dims_of(shape.size())) {
          Tensor x = values_for(*op, shape, t);
          if (cases.size() % 3 == 1) x = reversed(x);
          if (cases.size() % 3 == 2) x = with_gaps(x);
          cases.push_back({op, leaf(x), dims, cases.size() % 2 == 0});
        }
      }
    }
    check_step([&](Results& r) {
      for (const Case& c : cases) {
        const std::string name =
            fmt::format("{} of {} over {}", c.op->name, describe(c.x.impl()), to_string(c.dims));
        add_with_gradients(r, name, reduce(*c.op, c.x, c.dims, c.keepdim), {c.x});
        // Fused: what feeds it and what it feeds.
        if (is_floating(t))
          r.add(name + ", fused", reduce(*c.op, c.x * 0.5 + 1.0, c.dims, true) * c.x);
      }
    });
  }
}
