// Softmax, norms and losses: the kernels against their decompositions, gradients of both orders
// against differences, extreme values, errors.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "autograd/autograd.h"
#include "core/error.h"
#include "core/op.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"

using namespace brrr;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

using Tensors = std::vector<Tensor>;
using Doubles = std::vector<double>;

struct Words {
  std::vector<int64_t> integers;
  std::vector<double> floats;
};

// All outputs of the named row, from its kernel and from its decomposition.
struct Both {
  Tensors kernel, decomposed;
};
Both run_both(const char* name, const Tensors& in, const Words& words = {}) {
  const OpDef* op = find_op(name);
  REQUIRE(op);
  std::vector<TensorImpl*> impls;
  for (const Tensor& t : in) impls.push_back(t.impl());
  Both r;
  for (const bool decompose : {false, true}) {
    OpCall c(*op, impls.data(), static_cast<int>(impls.size()));
    for (int64_t w : words.integers) c.attrs.push(w);
    for (double w : words.floats) c.attrs.push(w);
    if (decompose)
      op->decompose(c, in.data());
    else
      dispatch(c);
    (decompose ? r.decomposed : r.kernel).assign(c.out, c.out + c.n_out);
  }
  return r;
}

bool same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

void check_same(const Both& r) {
  for (size_t k = 0; k < r.kernel.size(); ++k) {
    const Tensor &a = r.kernel[k], &b = r.decomposed[k];
    CAPTURE(k);
    REQUIRE(a.sizes() == b.sizes());
    REQUIRE(a.dtype() == b.dtype());
    const auto x = a.to(kFloat64).to_vector<double>(), y = b.to(kFloat64).to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i) {
      CAPTURE(i);
      if (!same(x[i], y[i])) REQUIRE(x[i] == y[i]);
    }
  }
}

Tensor normal(const IntList& sizes, DType t = kFloat64) {
  return randn(sizes).to(t);
}

Tensor classes_for(int64_t n, int64_t classes) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * 7 + 3) % classes;
  }
  return tensor(ids);
}

void check_values(const Tensor& t, const Doubles& want, double tolerance) {
  const auto got = t.to(kFloat64).to_vector<double>();
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(want[i]) || std::isinf(want[i]))
      CHECK(same(got[i], want[i]));
    else
      CHECK(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i])));
  }
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void check_gradients(const std::function<Tensor(const Tensors&)>& fn, const Tensors& in) {
  const auto r = gradcheck(fn, in, {.tolerance = 2e-6, .second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
}

const DType kFloatTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16};
// Below, at and beyond one vector, four of them, and a reduction chunk.
const int64_t kSizes[] = {1, 2, 10, 16, 17, 64, 65, 127, 1000, 4096, 4097, 9000};

}  // namespace

TEST_CASE("softmax: kernels equal the decompositions") {
  manual_seed(1);
  for (DType t : kFloatTypes) {
    for (int64_t n : kSizes) {
      CAPTURE(n);
      const Tensor x = (randn({3, n}) * 4.0).to(t), g = normal({3, n}, t);
      for (const std::string op : {"softmax", "log_softmax"}) {
        CAPTURE(op);
        const Both y = run_both(op.c_str(), {x});
        check_same(y);
        check_same(run_both((op + "_backward").c_str(), {y.kernel[0], g}));
      }
    }
  }
}

TEST_CASE("softmax: values, dims, layouts") {
  const Tensor x = tensor({{1.0f, 2.0f, 3.0f}, {-1.0f, 0.0f, 5.0f}});
  const auto expected = [](const Doubles& v) {
    Doubles e;
    double sum = 0;
    for (double a : v) sum += std::exp(a);
    for (double a : v) e.push_back(std::exp(a) / sum);
    return e;
  };
  check_values(x.select(0, 0).softmax(0), expected({1, 2, 3}), 1e-6);
  check_values(x.softmax(0).select(1, 2), expected({3, 5}), 1e-6);
  check_values(x.log_softmax(-2).select(1, 2).exp(), expected({3, 5}), 1e-6);
  check_values(x.t().softmax(1), softmax(x.t().contiguous(), 1).to(kFloat64).to_vector<double>(),
               0);
  CHECK(x.softmax(0).is_contiguous());
  check_values(softmax(tensor(3.0f), 0), {1}, 0);
  CHECK(softmax(zeros({0, 4}), 1).numel() == 0);
  CHECK(softmax(zeros({4, 0}), 1).numel() == 0);
}

TEST_CASE("softmax: extreme values") {
  for (DType t : {kFloat32, kFloat64}) {
    auto row = [&](const Doubles& v) { return tensor(v).to(t); };
    check_values(row({1e4, 1e4 - 1, -1e4}).softmax(0), {0.7310585786300049, 0.2689414213699951, 0},
                 1e-6);
    check_values(row({1e4, 1e4 - 1}).log_softmax(0), {-0.31326168751822286, -1.3132616875182228},
                 1e-6);
    check_values(row({-kInf, 0, 0}).softmax(0), {0, 0.5, 0.5}, 0);
    check_values(row({-kInf, 0}).log_softmax(0), {-kInf, 0}, 0);
    check_values(row({-kInf, -kInf}).softmax(0), {NAN, NAN}, 0);
    check_values(row({kInf, 0}).softmax(0), {NAN, NAN}, 0);
    check_values(row({NAN, 0, 1}).softmax(0), {NAN, NAN, NAN}, 0);
    check_values(row({0, NAN, 1}).log_softmax(0), {NAN, NAN, NAN}, 0);
  }
}

TEST_CASE("softmax: gradients") {
  manual_seed(2);
  for (int64_t dim : {0, 1, 2}) {
    check_gradients([=](const Tensors& in) { return softmax(in[0], dim); }, {normal({2, 3, 4})});
    check_gradients([=](const Tensors& in) { return log_softmax(in[0], dim); },
                    {normal({2, 3, 4})});
  }
}

TEST_CASE("layer_norm and rms_norm: kernels equal the decompositions") {
  manual_seed(3);
  for (DType t : kFloatTypes) {
    for (int64_t n : kSizes) {
      if (n == 1) continue;  // One element: a weight's gradient is a row reduction there.
      for (int64_t rows : {1, 5, 130}) {
        if (rows > 5 && n > 1000) continue;
        CAPTURE(n);
        CAPTURE(rows);
        const Tensor x = (randn({rows, n}) * 2.0 + 3.0).to(t), g = normal({rows, n}, t);
        const Words words{{1}, {1e-5}};
        for (const Tensor& w : {Tensor(), normal({n}, t)}) {
          const Both l = run_both("layer_norm", {x, w, w}, words);
          check_same(l);
          const Tensors lin = {x, w, l.kernel[1], l.kernel[2], g};
          check_same(run_both("layer_norm_backward", lin, words));
          check_same(run_both("layer_norm_backward_affine", lin, words));
          const Both r = run_both("rms_norm", {x, w}, words);
          check_same(r);
          const Tensors rin = {x, w, r.kernel[1], g};
          check_same(run_both("rms_norm_backward", rin, words));
          check_same(run_both("rms_norm_backward_affine", rin, words));
        }
      }
    }
  }
}

TEST_CASE("layer_norm and rms_norm: values") {
  const Tensor x = tensor({{1.0f, 2.0f, 3.0f, 6.0f}});
  const Tensor w = tensor({1.0f, 1.0f, 2.0f, 2.0f}), b = tensor({0.0f, 1.0f, 0.0f, 0.0f});
  const double s = std::sqrt(3.5 + 1e-5), q = std::sqrt(12.5 + 1e-5);
  check_values(layer_norm(x, {4}, w, b), {-2 / s, -1 / s + 1, 0, 6 / s}, 1e-6);
  check_values(rms_norm(x, {4}, w), {1 / q, 2 / q, 6 / q, 12 / q}, 1e-6);
  // Two passes: a large mean costs nothing but its own rounding.
  check_values(layer_norm(tensor({4096.0f, 4097.0f}), 2), {-1, 1}, 1e-4);
  check_values(layer_norm(x.view({1, 2, 2}), {2, 2}, w.view({2, 2})),
               layer_norm(x, {4}, w).to(kFloat64).to_vector<double>(), 0);
  CHECK(layer_norm(zeros({0, 4}), {4}).numel() == 0);
  // 16-bit activations with float32 weights.
  CHECK(layer_norm(x.to(kBFloat16), {4}, w, b).dtype() == kBFloat16);
}

TEST_CASE("layer_norm and rms_norm: gradients") {
  manual_seed(4);
  const Tensor x = normal({2, 3, 5}), w = normal({5}), b = normal({5});
  check_gradients([](const Tensors& in) { return layer_norm(in[0], {5}, in[1], in[2]); },
                  {x, w, b});
  check_gradients([](const Tensors& in) { return layer_norm(in[0], {5}); }, {x});
  check_gradients([](const Tensors& in) { return layer_norm(in[0], {5}, {}, in[1]); }, {x, b});
  check_gradients(
      [](const Tensors& in) {
        return layer_norm(in[0], {3, 5}, in[1]);
      },
      {x, normal({3, 5})});
  check_gradients([](const Tensors& in) { return rms_norm(in[0], {5}, in[1]); }, {x, w});
  check_gradients([](const Tensors& in) { return rms_norm(in[0], {3, 5}); }, {x});
  // Only a weight wants a gradient.
  const Tensor v = w.clone().set_requires_grad();
  layer_norm(x, {5}, v).sum().backward();
  CHECK(v.grad().sizes() == IntList{5});
  // 16-bit activations with float32 weights; and no rows at all.
  const Tensor u = w.to(kFloat32).set_requires_grad(), h = x.to(kBFloat16).set_requires_grad();
  rms_norm(h, {5}, u).sum().backward();
  CHECK(h.grad().dtype() == kBFloat16);
  CHECK(u.grad().dtype() == kFloat32);
  const Tensor o = w.clone().set_requires_grad();
  layer_norm(zeros({0, 5}, kFloat64), {5}, o).sum().backward();
  check_values(o.grad(), {0, 0, 0, 0, 0}, 0);
}

TEST_CASE("cross_entropy: kernels equal the decompositions") {
  manual_seed(5);
  for (DType t : kFloatTypes) {
    for (int64_t n : {1, 3, 32, 100}) {
      for (int64_t classes : kSizes) {
        CAPTURE(n);
        CAPTURE(classes);
        const Tensor x = (randn({n, classes}) * 3.0).to(t), ids = classes_for(n, classes);
        const Both y = run_both("cross_entropy", {x, ids});
        check_same(y);
        check_same(run_both("cross_entropy_backward",
                            {x, ids, y.kernel[1], y.kernel[2], full({}, 0.75, t)}));
      }
    }
  }
}

TEST_CASE("cross_entropy: ignored rows and smoothing, kernels and decompositions") {
  manual_seed(15);
  for (DType t : kFloatTypes) {
    for (int64_t n : {1, 5, 40}) {
      for (int64_t classes : {2, 19, 100}) {
        for (double smoothing : {0.0, 0.1, 1.0}) {
          CAPTURE(n);
          CAPTURE(smoothing);
          const Tensor x = (randn({n, classes}) * 3.0).to(t), ids = classes_for(n, classes);
          // Class 1 does not count, here and below; not in the ids at all with one row.
          const Words words{{1}, {smoothing}};
          const Both y = run_both("cross_entropy", {x, ids}, words);
          check_same(y);
          check_same(run_both("cross_entropy_backward",
                              {x, ids, y.kernel[1], y.kernel[2], full({}, 0.75, t)}, words));
        }
      }
    }
  }
}

TEST_CASE("cross_entropy: ignored rows are as if they were not there") {
  manual_seed(16);
  const Tensor x = randn({4, 5}), bad = x.clone();
  bad.select(0, 1).fill_(NAN);
  bad.select(0, 3).fill_(kInf);
  const Tensor ids = tensor({2, -100, 4, -100}), rows = tensor({0, 2});
  for (double smoothing : {0.0, 0.2}) {
    const CrossEntropyOptions options{.label_smoothing = smoothing};
    const Tensor u = bad.clone().set_requires_grad();
    const Tensor v = index_select(x, 0, rows).set_requires_grad();
    const Tensor a = cross_entropy(u, ids, options);
    const Tensor b = cross_entropy(v, index_select(ids, 0, rows), options);
    check_values(a, {b.item<double>()}, 1e-6);
    a.backward();
    b.backward();
    check_values(index_select(u.grad(), 0, rows), v.grad().to(kFloat64).to_vector<double>(), 0);
    check_values(index_select(u.grad(), 0, tensor({1, 3})), Doubles(10, 0.0), 0);
  }
  // Another index, which may be a class; then -100 is out of range.
  check_values(cross_entropy(x, tensor({2, 0, 4, 0}), {.ignore_index = 0}),
               {cross_entropy(x, ids).item<double>()}, 0);
  CHECK(error_of([&] { cross_entropy(x, ids, {.ignore_index = 0}); }) ==
        "cross_entropy: id -100 at position 1 is out of range for 5 classes");
  CHECK(error_of([&] {
          cross_entropy(x, tensor({2, -100, 5, 0}));
        }) == "cross_entropy: id 5 at position 2 is out of range for 5 classes");
  // None counts: NaN as in PyTorch, and no gradient.
  const Tensor w = x.clone().set_requires_grad();
  const Tensor none = cross_entropy(w, full({4}, -100));
  check_values(none, {NAN}, 0);
  none.backward();
  check_values(w.grad(), Doubles(20, 0.0), 0);
}

TEST_CASE("cross_entropy: label smoothing") {
  manual_seed(17);
  const Tensor x = randn({3, 4}), ids = tensor({1, 0, 3});
  const Tensor logp = log_softmax(x, 1), target = one_hot(ids, 4).to(kFloat32) * 0.7 + 0.3 / 4;
  check_values(cross_entropy(x, ids, {.label_smoothing = 0.3}),
               {-(logp * target).sum({1}).mean().item<double>()}, 1e-6);
  check_values(cross_entropy(x, ids, {.label_smoothing = 1}),
               {-logp.mean({1}).mean().item<double>()}, 1e-6);
  // Without smoothing classes may be ruled out; with it their loss is infinite.
  const Tensor out = tensor({{0.0f, 0.0f, -std::numeric_limits<float>::infinity()}});
  const Tensor id = tensor(std::vector<int64_t>{1});
  check_values(cross_entropy(out, id), {std::log(2.0)}, 1e-6);
  check_values(cross_entropy(out, id, {.label_smoothing = 0.1}), {kInf}, 0);
  for (double bad : {-0.1, 1.5, double{NAN}}) {
    CHECK(error_of([&] {
            cross_entropy(x, ids, {.label_smoothing = bad});
          }).find("cross_entropy: label_smoothing must be in [0, 1]") == 0);
  }
  const Tensor some = tensor({1, -100, 3});
  const CrossEntropyOptions options{.label_smoothing = 0.2};
  check_gradients([=](const Tensors& in) { return cross_entropy(in[0], some, options).square(); },
                  {normal({3, 4})});
}

TEST_CASE("cross_entropy: values and extremes") {
  const Tensor ids = tensor(std::vector<int64_t>{1, 0});
  const Tensor x = tensor({{0.0f, std::log(3.0f)}, {2.0f, 2.0f}}).set_requires_grad();
  const Tensor loss = cross_entropy(x, ids);
  CHECK(loss.sizes() == IntList{});
  check_values(loss, {(std::log(4.0 / 3) + std::log(2.0)) / 2}, 1e-6);
  loss.backward();
  check_values(x.grad(), {0.125, -0.125, -0.25, 0.25}, 1e-6);

  check_values(cross_entropy(tensor({{1e4f, 1e4f - 1}, {-kInf, 0.0}}), tensor({0, 1})),
               {0.31326168751822286 / 2}, 1e-6);
  check_values(cross_entropy(tensor({{-1e30f, 1e30f}}), tensor(std::vector<int64_t>{1})), {0}, 0);
  check_values(cross_entropy(tensor({{-kInf, 0.0}}), tensor(std::vector<int64_t>{0})), {kInf}, 0);
  check_values(cross_entropy(zeros({0, 3}), zeros({0}, kInt64)), {NAN}, 0);
  const Tensor none = zeros({0, 3}).set_requires_grad();
  cross_entropy(none, zeros({0}, kInt64)).backward();
  CHECK(none.grad().numel() == 0);
  // Strided operands.
  const Tensor y = randn({5, 4}), some = tensor({0, 9, 1, 9, 2, 9, 3, 9}).slice(0, 0, 8, 2);
  check_values(cross_entropy(y.t().slice(1, 0, 4), some),
               {cross_entropy(y.t().slice(1, 0, 4).contiguous(), some.contiguous()).item<double>()},
               0);
}

TEST_CASE("cross_entropy: gradients") {
  manual_seed(6);
  const Tensor ids = classes_for(4, 5);
  check_gradients([=](const Tensors& in) { return cross_entropy(in[0], ids); }, {normal({4, 5})});
  // The loss once more in the gradient's gradient.
  check_gradients([=](const Tensors& in) { return cross_entropy(in[0] * in[0], ids).square(); },
                  {normal({4, 5})});
}

TEST_CASE("mse_loss and bce_with_logits") {
  manual_seed(7);
  const Tensor a = tensor({1.0f, 2.0f}), b = tensor({0.0f, 4.0f});
  check_values(mse_loss(a, b), {2.5}, 0);
  check_gradients([](const Tensors& in) { return mse_loss(in[0], in[1]); },
                  {normal({3, 2}), normal({3, 2})});
  const Tensor x = tensor({0.0f, 50.0f, -50.0f, 1e4f, -1e4f, 2.0f}).set_requires_grad();
  const Tensor t = tensor({0.5f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f});
  const Tensor loss = bce_with_logits(x, t);
  check_values(loss, {(std::log(2.0) + 2 + std::log1p(std::exp(-2.0))) / 6}, 1e-6);
  loss.backward();
  check_values(x.grad(), {0, 0, 0, 0, 0, 1 / (1 + std::exp(-2.0)) / 6}, 1e-7);
  check_gradients([](const Tensors& in) { return bce_with_logits(in[0], in[1]); },
                  {normal({3, 2}), rand({3, 2}).to(kFloat64)});
}

TEST_CASE("nn ops: errors name the op, the shapes and the mend") {
  const Tensor x = zeros({4, 10});
  const auto ids = [](std::vector<int64_t> v) { return tensor(v); };
  CHECK(error_of([&] {
          cross_entropy(x, ids({1, 2, 3, 12}));
        }) == "cross_entropy: id 12 at position 3 is out of range for 10 classes");
  CHECK(error_of([&] {
          cross_entropy(x, ids({1, -1, 3, 2}));
        }) == "cross_entropy: id -1 at position 1 is out of range for 10 classes");
  CHECK(error_of([&] {
          cross_entropy(x, ids({1, 2}));
        }) ==
        "cross_entropy: takes logits [n, classes] and ids [n], got float32[4, 10] and int64[2]; "
        "flatten other dims with reshape");
  CHECK(error_of([&] { cross_entropy(x, zeros({4})); }) ==
        "cross_entropy: takes int64 class ids, got float32[4]; class probabilities are not "
        "supported, give ids or use log_softmax");
  CHECK(error_of([&] { cross_entropy(x, Tensor()); }) ==
        "cross_entropy: an operand is undefined; assign one first");
  CHECK(error_of([&] {
          softmax(ids({1, 2}), 0);
        }) == "softmax: takes floating dtypes, got int64[2]; convert with to(kFloat32)");
  CHECK(error_of([&] { softmax(x, 2); }).find("softmax: ") == 0);
  CHECK(error_of([&] { layer_norm(x, {4}); }) ==
        "layer_norm: the normalized shape [4] is not the trailing sizes of float32[4, 10]; give "
        "the sizes of its last dims");
  CHECK(error_of([&] { rms_norm(x, {10}, zeros({4})); }) ==
        "rms_norm: weight is float32[4], but the normalized shape of float32[4, 10] is [10]; give "
        "one weight for each normalized element");
  CHECK(error_of([&] { layer_norm(x, {10}, zeros({10}, kFloat64)); }) ==
        "layer_norm: weight is float64[10] and x is float32[4, 10]; convert one with to(dtype)");
  CHECK(error_of([&] { mse_loss(x, zeros({4})); }) ==
        "mse_loss: shapes differ: [4, 10] and [4]; reshape or expand one");
}
