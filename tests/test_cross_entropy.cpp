// cross_entropy: the kernels against their decompositions, ignored rows, smoothing, gradients of
// both orders, extreme values.

#include "tests/nn_cases.h"

using namespace brrr;
using namespace brrr::nn_test;

// The number of ids that are not ignored.
static Tensor counted(const Tensor& ids, int64_t ignored, DType t) {
  return sum((ids != ignored).to(compute_type(t)));
}

TEST_CASE("cross_entropy: kernels equal the decompositions") {
  manual_seed(5);
  for (DType t : kFloatTypes) {
    for (int64_t n : {1, 3, 32, 100}) {
      for (int64_t classes : kSizes) {
        CAPTURE(n);
        CAPTURE(classes);
        const Tensor x = (randn({n, classes}) * 3.0).to(t), ids = classes_for(n, classes);
        const AttrValues attrs = loss_attrs(classes);
        Tensors in{x, ids, counted(ids, -100, t)};
        const Both y = run_both("cross_entropy", in, attrs);
        check_same(y);
        in.insert(in.end(), y.kernel.begin(), y.kernel.end());
        in.push_back(full({}, 0.75, t));
        check_same(run_both("cross_entropy_backward", in, attrs));
      }
    }
  }
}

TEST_CASE("cross_entropy: without classes both derivatives are empty") {
  const Tensor x = zeros({3, 0}).set_requires_grad(), ids = full({3}, -100, kInt64);
  const Tensor g = grad({cross_entropy(x, ids)}, {x}, {.create_graph = true})[0];
  CHECK(g.sizes() == IntList{3, 0});
  const Tensor second = grad({g.sum()}, {x}, {.allow_unused = true})[0];
  CHECK((!second.defined() || second.sizes() == IntList{3, 0}));
}

TEST_CASE("cross_entropy: options that change nothing change no bit") {
  manual_seed(14);
  for (int64_t classes : {3, 65}) {
    const Tensor x = (randn({33, classes}) * 3.0).set_requires_grad(),
                 ids = classes_for(33, classes);
    const Tensor loss = cross_entropy(x, ids), g = grad({loss}, {x})[0];
    NoGradGuard no_grad;
    const Tensor d = x - amax(x, 1, true), s = sum(exp(d), 1, true);
    check_values(loss, {mean(log(s) - gather(d, 1, unsqueeze(ids, 1))).item<double>()}, 0);
    const Tensor p = exp(d) * reciprocal(s), want = (p - one_hot(ids, classes)) * (ones({}) / 33.0);
    check_values(g, want.to(kFloat64).to_vector<double>(), 0);
    EnableGradGuard enable;
    const Tensor same_loss = cross_entropy(x, ids, {.ignore_index = 99, .label_smoothing = 0});
    check_values(same_loss, {loss.item<double>()}, 0);
    check_values(grad({same_loss}, {x})[0], want.to(kFloat64).to_vector<double>(), 0);
  }
}

TEST_CASE("cross_entropy: each row's loss, and their sum") {
  manual_seed(24);
  const Tensor x = (randn({7, 11}) * 3.0).set_requires_grad(),
               ids = tensor(std::vector<int64_t>{3, -100, 0, 10, -100, 5, 5});
  for (const double smoothing : {0.0, 0.1}) {
    CrossEntropyOptions o = {.label_smoothing = smoothing, .reduction = Reduction::None};
    const Tensor each = cross_entropy(x, ids, o), weight = arange(7.0);
    REQUIRE(each.sizes() == IntList{7});
    const Tensor g = grad({sum(each * weight)}, {x})[0];
    o.reduction = Reduction::Sum;
    CHECK(cross_entropy(x, ids, o).item<float>() == sum(each).item<float>());
    o.reduction = Reduction::Mean;
    for (int64_t r = 0; r < 7; ++r) {  // The loss of row r by itself.
      const bool counts = r != 1 && r != 4;
      const Tensor row = x.detach().narrow(0, r, 1).clone().set_requires_grad();
      const Tensor loss = cross_entropy(row, ids.narrow(0, r, 1), o);
      check_values(each.select(0, r), {counts ? loss.item<double>() : 0.0}, 0);
      check_values(
          g.narrow(0, r, 1),
          (grad({loss}, {row})[0] * static_cast<double>(r)).to(kFloat64).to_vector<double>(), 1e-6);
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
          // Class 1 is ignored, here and below; a single row is of it only if there are 2 classes.
          const AttrValues attrs = loss_attrs(classes, 1, smoothing);
          const std::string row = loss_row(smoothing);
          Tensors in{x, ids, counted(ids, 1, t)};
          const Both y = run_both(row.c_str(), in, attrs);
          check_same(y);
          in.insert(in.end(), y.kernel.begin(), y.kernel.end());
          in.push_back(full({}, 0.75, t));
          check_same(run_both((row + "_backward").c_str(), in, attrs));
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
  // All rows ignored: NaN as in PyTorch, and no gradient.
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
  // A logit of -inf rules a class out; with smoothing the loss is then infinite.
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
  // Second order, with the loss itself in the gradient.
  check_gradients([=](const Tensors& in) { return cross_entropy(in[0] * in[0], ids).square(); },
                  {normal({4, 5})});
}
