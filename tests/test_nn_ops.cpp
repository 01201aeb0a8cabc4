// Softmax, norms and losses (without cross_entropy): kernels against their decompositions,
// gradients of both orders against finite differences, extreme values, errors.

#include "tests/nn_cases.h"

using namespace brrr;
using namespace brrr::nn_test;

TEST_CASE("softmax: kernels equal the decompositions") {
  manual_seed(1);
  for (DType t : kFloatTypes) {
    for (int64_t n : kSizes) {
      CAPTURE(n);
      const Tensor x = (randn({3, n}) * 4.0).to(t), g = normal({3, n}, t);
      for (const std::string op : {"softmax", "log_softmax"}) {
        CAPTURE(op);
        const Both y = run_both(op.c_str(), {x}, {{1}, {}});
        check_same(y);
        check_same(run_both((op + "_backward").c_str(), {x, y.kernel[0], g}, {{1}, {}}));
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
        const AttrValues attrs{{1}, {1e-5}};
        for (const Tensor& w : {Tensor(), normal({n}, t)}) {
          const Both l = run_both("layer_norm", {x, w, w}, attrs);
          check_same(l);
          const Tensors lin = {x, w, w, l.kernel[0], l.kernel[1], l.kernel[2], g};
          check_same(run_both("layer_norm_backward", lin, attrs));
          const Both r = run_both("rms_norm", {x, w}, attrs);
          check_same(r);
          const Tensors rin = {x, w, r.kernel[0], r.kernel[1], g};
          check_same(run_both("rms_norm_backward", rin, attrs));
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
  // Two passes: a large mean costs only its own rounding.
  check_values(layer_norm(tensor({4096.0f, 4097.0f}), 2), {-1, 1}, 1e-4);
  check_values(layer_norm(x.view({1, 2, 2}), {2, 2}, w.view({2, 2})),
               layer_norm(x, {4}, w).to(kFloat64).to_vector<double>(), 0);
  CHECK(layer_norm(zeros({0, 4}), {4}).numel() == 0);
  // 16-bit activations with float32 weights.
  CHECK(layer_norm(x.to(kBFloat16), {4}, w, b).dtype() == kBFloat16);
}

TEST_CASE("layer_norm: a bias's gradient is as exact as the bias, whatever the weight is") {
  const Tensor x = randn({1000, 8}), w = ones({8}, kBFloat16);
  const Tensor b = zeros({8}).set_requires_grad();
  layer_norm(x, {8}, w, b).backward(full({1000, 8}, 1.001));
  CHECK(b.grad().dtype() == kFloat32);
  CHECK(b.grad().select(0, 0).item<double>() == doctest::Approx(1001).epsilon(1e-5));
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
  // Only the weight requires a gradient.
  const Tensor v = w.clone().set_requires_grad();
  layer_norm(x, {5}, v).sum().backward();
  CHECK(v.grad().sizes() == IntList{5});
  // 16-bit activations with float32 weights; and no rows.
  const Tensor u = w.to(kFloat32).set_requires_grad(), h = x.to(kBFloat16).set_requires_grad();
  rms_norm(h, {5}, u).sum().backward();
  CHECK(h.grad().dtype() == kBFloat16);
  CHECK(u.grad().dtype() == kFloat32);
  const Tensor o = w.clone().set_requires_grad();
  layer_norm(zeros({0, 5}, kFloat64), {5}, o).sum().backward();
  check_values(o.grad(), {0, 0, 0, 0, 0}, 0);
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

TEST_CASE("mse_loss and bce_with_logits: the sum and the parts") {
  const Tensor a = tensor({1.0f, 2.0f}), b = tensor({0.0f, 4.0f});
  check_values(mse_loss(a, b, Reduction::Sum), {5}, 0);
  check_values(mse_loss(a, b, Reduction::None), {1, 4}, 0);
  const double first = std::log1p(std::exp(1.0)), second = std::log1p(std::exp(2.0)) - 8;
  check_values(bce_with_logits(a, b, Reduction::None), {first, second}, 1e-6);
  check_values(bce_with_logits(a, b, Reduction::Sum), {first + second}, 1e-6);
  check_gradients(
      [](const Tensors& in) {
        return mse_loss(in[0], in[1], Reduction::None) *
               bce_with_logits(in[0], in[1], Reduction::None);
      },
      {normal({3, 2}), rand({3, 2}).to(kFloat64)});
}

TEST_CASE("mse_loss and bce_with_logits: operands of two dtypes") {
  const Tensor x = tensor({0.5f, 2.0f}), mask = tensor({true, false});
  check_values(mse_loss(x, mask), {2.125}, 0);
  check_values(mse_loss(mask, x), {2.125}, 0);
  check_values(bce_with_logits(x, mask),
               {(std::log1p(std::exp(-0.5)) + std::log1p(std::exp(2.0))) / 2}, 1e-6);
  // A bool mask has no subtraction or negation; gradients of both orders work.
  check_gradients([&](const Tensors& in) { return bce_with_logits(in[0], mask); },
                  {x.to(kFloat64)});
  check_gradients([&](const Tensors& in) { return bce_with_logits(mask, in[0]).square(); },
                  {x.to(kFloat64)});
  CHECK(bce_with_logits(x, x.to(kFloat64)).dtype() == kFloat64);
  CHECK(bce_with_logits(x.to(kBFloat16), x).dtype() == kFloat32);
  CHECK(bce_with_logits(x.to(kFloat16), x.to(kFloat16)).dtype() == kFloat16);
}

TEST_CASE("nn ops: errors name the op, the shapes and the remedy") {
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
  CHECK(error_of([] {
          log_softmax(zeros({2, 3}, kInt64), 0);
        }) == "log_softmax: takes floating dtypes, got int64[2, 3]; convert with to(kFloat32)");
  CHECK(error_of([&] { softmax(x, 2); }).find("softmax: ") == 0);
  CHECK(error_of([&] { layer_norm(x, {4}); }) ==
        "layer_norm: the normalized shape [4] is not the trailing sizes of float32[4, 10]; give "
        "the sizes of its last dims");
  CHECK(error_of([&] { rms_norm(x, {10}, zeros({4})); }) ==
        "rms_norm: weight is float32[4], but the normalized shape of float32[4, 10] is [10]; give "
        "one weight for each normalized element");
  CHECK(error_of([&] { layer_norm(x, {10}, x); }) ==
        "layer_norm: weight is float32[4, 10], but the normalized shape of float32[4, 10] is "
        "[10]; give one weight for each normalized element");
  CHECK(error_of([&] { layer_norm(x, {10}, zeros({10}, kFloat64)); }) ==
        "layer_norm: weight is float64[10] and x is float32[4, 10]; convert one with to(dtype)");
  CHECK(error_of([&] { mse_loss(x, zeros({4})); }) ==
        "mse_loss: shapes differ: [4, 10] and [4]; reshape or expand one");
}
