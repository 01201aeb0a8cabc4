// Every reduction row of the registry, without naming one: values against the oracle, gradients
// against finite differences, layouts, threads, special values, and graph mode against eager mode.

#include <limits>

#include "ops/reduction_ops.h"
#include "tests/reduction_cases.h"
#include "tests/threads.h"

using namespace brrr;
using namespace brrr::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("reduction rows: values agree with the oracle") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (const IntList& shape : kShapes) {
      for (const IntList& dims : dims_of(shape.size())) {
        check_oracle(*op, values_for(shape, kFloat32), dims, false);
      }
    }
    for (DType t : {kFloat64, kInt64, kInt32, kUInt8, kBool}) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& shape : {IntList{}, {9}, {2, 3, 5}, {3, 1, 4}}) {
        for (const IntList& dims : dims_of(shape.size())) {
          check_oracle(*op, values_for(shape, t), dims, true);
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
            const Tensor x = values_for({n, 3}, t);
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

TEST_CASE("var: of no elements, or of one if unbiased, is NaN") {
  for (DType t : {kFloat32, kFloat64, kBFloat16}) {
    for (const bool unbiased : {true, false}) {
      CHECK(std::isnan(zeros({0}, t).var({}, unbiased).item<double>()));
      const auto rows = zeros({2, 0}, t).var({1}, unbiased).to_vector<double>();
      CHECK(std::isnan(rows[0]));
      CHECK(std::isnan(rows[1]));
    }
    CHECK(std::isnan(ones({1}, t).var().item<double>()));
    CHECK(ones({1}, t).var({}, false).item<double>() == 0);
  }
}

TEST_CASE("mean, logsumexp: of no elements, the gradient has gradient 0 by its weight") {
  const Tensor x = zeros({0, 2, 1}).set_requires_grad(true);
  for (const IntList& dims : {IntList{0}, IntList{0, 1}, IntList{0, 2}, IntList{0, 1, 2}}) {
    for (const Tensor& y : {mean(x, dims), logsumexp(x, dims, true)}) {
      const Tensor weight = ones_like(y).set_requires_grad(true);
      const Tensor g = grad({y}, {x}, {.create_graph = true}, {weight})[0];
      CHECK(grad({g.sum()}, {weight})[0].abs().sum().item<float>() == 0);
    }
  }
  CHECK(logsumexp(x, {0, 2}).to_vector<float>() == std::vector(2, -INFINITY));
}

TEST_CASE("logsumexp: next to an infinity finite elements have gradient 0, however large") {
  for (DType t : {kFloat32, kFloat64, kBFloat16}) {
    for (const int64_t dim : {0, 1}) {
      const std::vector<double> row = {1000, kInf, 1, -kInf, -1e37};
      const Tensor x = tensor(row).to(t).view(dim ? IntList{1, 5} : IntList{5, 1}).clone();
      const Tensor y = logsumexp(x.set_requires_grad(), {dim});
      CHECK(y.item<double>() == kInf);
      y.sum().backward();
      const auto g = x.grad().to_vector<double>();
      for (size_t i = 0; i < g.size(); ++i) {
        if (i == 1) CHECK(std::isnan(g[i]));  // inf - inf.
        if (i != 1) CHECK(g[i] == 0);
      }
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

TEST_CASE("reduction rows: gradients of both orders agree with finite differences") {
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
      const Tensor x = values_for(c.sizes, kFloat64);
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
          const Tensor x = values_for(shape, t), y = reduce(*op, x, dims, false);
          check_same(reduce(*op, reversed(x), dims, false), y);
          check_same(reduce(*op, with_gaps(x), dims, false), y);
          if (itemsize(t) == 2) {
            check_same(reduce(*op, x.to(kFloat32), dims, false).to(y.dtype()), y);
          }
        }
      }
      const Tensor row = values_for({1, 67}, t), wide = row.expand({40, 67});
      for (const IntList& dims : dims_of(2)) {
        check_same(reduce(*op, wide, dims, true), reduce(*op, wide.clone(), dims, true));
      }
    }
  }
}

// Parts of rows and of columns, within and across dims, are read in blocks.
TEST_CASE("reduction rows: rows that share a vector have the bits of a single row") {
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kFloat64, kBFloat16, kInt64, kInt32, kBool}) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& shape : {IntList{19, 2}, {33, 4}, {7, 8}, {700, 8}}) {
        const Tensor x = values_for(shape, t);
        if (is_floating(t)) x.select(0, 3).fill_(-0.0), x.select(0, 4).fill_(kNaN);
        const Tensor all = reduce(*op, x, {1}, false);
        for (int64_t r = 0; r < shape[0]; r += 1 + shape[0] / 50)
          check_same(all.select(0, r), reduce(*op, x.select(0, r), {0}, false));
      }
    }
  }
}

TEST_CASE("reduction rows: dims in any order of memory, parts of them too, do not change a bit") {
  const Threads restore;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (DType t : {kFloat32, kFloat64, kBFloat16, kInt64, kUInt8}) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& order : {IntList{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
        const bool few = op->name != std::string("sum") && order[0] != 2;
        for (const IntList& shape : {IntList{67, 41, 35}, {3, 70, 530}, {2, 1030, 20}}) {
          if (few && shape[0] == 3) continue;
          const Tensor whole = values_for(shape, t).permute(order);
          const Tensor part = whole.narrow(1, 1, whole.size(1) - 1);
          for (const Tensor& x : {whole, part}) {
            const Tensor dense = x.contiguous();
            for (const IntList& dims : dims_of(3)) {
              cpu::set_num_threads(1);
              const Tensor y = reduce(*op, dense, dims, false);
              check_same(reduce(*op, x, dims, false), y);
              cpu::set_num_threads(3);
              check_same(reduce(*op, x, dims, false), y);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("reduction rows: a single row of two elements that are not adjacent") {
  CHECK(arange(4).to(kFloat32).slice(0, 0, 4, 2).sum().item<float>() == 2);
}

TEST_CASE("reduction rows: the number of threads does not change a bit") {
  const Threads restore;
  for (const OpDef* op : rows_of(OpKind::Reduction)) {
    CAPTURE(std::string(op->name));
    for (const IntList& shape :
         {IntList{300000}, {3, 100000}, {100000, 3}, {500, 700}, {9, 301, 99}}) {
      for (DType t : {kFloat32, kBFloat16}) {
        const Tensor x = values_for(shape, t);
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

TEST_CASE("reduction rows: gradients of 16-bit floats are rounded once") {
  for (DType t : {kFloat16, kBFloat16}) {
    // The products of the others; some overflow float16, and the rest must not.
    const Tensor x = tensor({256.f, 256.f, 0.75f, 0.0078125f}).to(t).set_requires_grad();
    check_same(grad({prod(x)}, {x})[0], tensor({1.5f, 1.5f, 512.f, 49152.f}).to(t));
    // Counts beyond float16's range, and beyond bfloat16's precision.
    const Tensor many = zeros({131072}, t).set_requires_grad();
    check_same(grad({amax(many)}, {many})[0], full({131072}, 0x1p-17).to(t));
    const Tensor few = zeros({3, 257}, t).set_requires_grad();
    check_same(grad({amin(few, 1)}, {few}, {}, {full({3}, 257.0).to(t)})[0],
               (full({3, 257}, 257.0).to(t).to(kFloat32) / 257.0).to(t));
  }
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
    size_t turn = 0;
    for (const OpDef* op : rows_of(OpKind::Reduction)) {
      if (!has_kernel(*op, t)) continue;
      for (const IntList& shape : {IntList{}, {7, 33}, {70, 9}, {3, 4100}, {4, 5, 18}}) {
        for (const IntList& dims : dims_of(shape.size())) {
          // 17 shapes and dims a row: each row runs a different part of them.
          if (turn++ % (t == kFloat32 ? 2 : 5) && !long_tests()) continue;
          Tensor x = values_for(shape, t);
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
        // Fused with ops before and after.
        if (is_floating(t))
          r.add(name + ", fused", reduce(*c.op, c.x * 0.5 + 1.0, c.dims, true) * c.x);
      }
    });
  }
}
