// Triangles, running sums, sorting, weighted draws: values, extremes, dtypes, ties, errors.

#include <algorithm>
#include <numeric>

#include "brrr.h"
#include "tests/op_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

using Doubles = std::vector<double>;
using Longs = std::vector<int64_t>;

constexpr DType kDTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16,
                             kInt64,   kInt32,   kUInt8,    kBool};

Doubles doubles(const Tensor& t) { return t.to(kFloat64).to_vector<double>(); }
Longs longs(const Tensor& t) {
  REQUIRE(t.dtype() == kInt64);
  return t.to_vector<int64_t>();
}

/// The positions of a stable sort, with NaN as the largest.
Longs reference_order(const Doubles& x, bool descending) {
  Longs at(x.size());
  std::iota(at.begin(), at.end(), 0);
  auto less = [](double a, double b) { return a < b || (!std::isnan(a) && std::isnan(b)); };
  std::stable_sort(at.begin(), at.end(), [&](int64_t i, int64_t j) {
    const double a = x[static_cast<size_t>(i)], b = x[static_cast<size_t>(j)];
    return descending ? less(b, a) : less(a, b);
  });
  return at;
}

/// n elements with many ties and, in floating dtypes, NaN, infinities and both zeros.
Tensor mixed(int64_t n, DType dtype, int salt = 0) {
  const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, -NAN};
  Doubles v;
  for (int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<size_t>((i * 7919 + salt * 31) % (n / 2 + 3));
    const bool whole = !is_floating(dtype);
    v.push_back(!whole && i % 11 == 3 ? special[k % 6]
                                      : std::floor(60 * std::sin(static_cast<double>(k))));
    if (dtype == kUInt8 || dtype == kBool) v.back() = std::fabs(v.back());
  }
  return from_blob(static_cast<const void*>(v.data()), {n}, kFloat64).to(dtype);
}

}  // namespace

TEST_CASE("tril and triu: every diagonal, dtype and layout; other elements are never read") {
  for (DType t : kDTypes) {
    for (const IntList& s : {IntList{3, 5}, {5, 3}, {2, 1, 4}, {2, 2, 3, 3}, {0, 3}, {2, 3, 0}}) {
      const Tensor x = sampled(s, t);
      for (int64_t k : {-100, -3, -1, 0, 1, 2, 100}) {
        for (const Tensor& y : {x, x.transpose(-1, -2)}) {
          const Tensor rows = arange(y.size(-2)).unsqueeze(1), cols = arange(y.size(-1));
          const Tensor zero = zeros(y.sizes(), t);
          check_same(tril(y, k), where(cols - rows <= k, y, zero));
          check_same(y.triu(k), where(cols - rows >= k, y, zero));
        }
      }
    }
  }
  const Tensor bad = full({2, 2}, NAN);
  CHECK(doubles(tril(bad.triu(1))) == Doubles{0, 0, 0, 0});
  CHECK(doubles(tril(ones({2, 2}), INT64_MIN)) == Doubles{0, 0, 0, 0});
  CHECK(doubles(triu(ones({2, 2}), INT64_MAX)) == Doubles{0, 0, 0, 0});
}

TEST_CASE("cumsum: sequential, in the compute type, along any dim") {
  for (DType t : kDTypes) {
    for (const IntList& s : {IntList{7, 19}, {1, 100}, {100, 1}, {3, 9, 17}, {0, 3}, {3, 0}}) {
      const Tensor x = sampled(s, t);
      for (int dim = 0; dim < s.size(); ++dim) {
        const Tensor y = cumsum(x, dim);
        const DType result = is_floating(t) ? t : kInt64, compute = compute_type(result);
        REQUIRE(y.dtype() == result);
        // Recomputes the sums by slices.
        Tensor total;
        for (int64_t i = 0; i < x.size(dim); ++i) {
          const Tensor next = x.select(dim, i).to(compute);
          total = i ? total + next : next;
          check_same(y.select(dim, i).contiguous(), total.to(result));
        }
        if (s.size() == 2) check_same(cumsum(laid_out(x, Layout::Sliced), dim), y);
        if (s.size() == 2) check_same(x.t().clone().t().cumsum(dim - 2), y);
      }
    }
  }
  CHECK(cumsum(tensor(2.5), 0).item<double>() == 2.5);
  CHECK(std::signbit(doubles(cumsum(tensor({-0.0, -0.0}), 0))[1]));
  CHECK(longs(cumsum(tensor(Longs{INT64_MAX, 1}), 0)) == Longs{INT64_MAX, INT64_MIN});
  const Doubles y = doubles(cumsum(tensor({1.0f, INFINITY, 2.0f, -INFINITY, 0.0f}), 0));
  CHECK(y[2] == INFINITY);
  CHECK((std::isnan(y[3]) && std::isnan(y[4])));
}

TEST_CASE("argsort and sort: stable, NaN the largest, every dtype and length") {
  for (DType t : kDTypes) {
    for (int64_t n : {1, 2, 17, 255, 256, 1000, 5000}) {
      const Tensor x = mixed(n, t);
      for (bool descending : {false, true}) {
        CAPTURE(n);
        const Longs want = reference_order(doubles(x), descending);
        CHECK(longs(argsort(x, -1, descending)) == want);
        const auto [values, at] = x.sort(0, descending);
        CHECK(longs(at) == want);
        check_same(values, x.index_select(0, at));
      }
    }
  }
}

TEST_CASE("topk: the first of the sort") {
  for (DType t : kDTypes) {
    for (int64_t n : {1, 5, 300, 5000}) {
      const Tensor x = mixed(n, t, 2);
      for (int64_t k : {int64_t{0}, int64_t{1}, n / 50 + 1, n / 2, n}) {
        for (bool largest : {false, true}) {
          const auto [values, at] = topk(x, k, 0, largest);
          const auto [all, order] = sort(x, 0, largest);
          check_same(values, all.narrow(0, 0, k));
          check_same(at, order.narrow(0, 0, k));
        }
      }
    }
  }
}

TEST_CASE("sort and topk: along other dims, 0-d, without elements") {
  const Tensor x = sampled({3, 4, 5}, kFloat32);
  for (int dim : {0, 1, 2}) {
    const auto [values, at] = sort(x, dim);
    const auto top = topk(x, 2, dim);
    for (int64_t i = 0; i < 3; ++i) {
      const Tensor line = dim == 0 ? x.select(2, 4).select(1, i) : x.select(0, i);
      const Tensor from = dim == 0 ? at.select(2, 4).select(1, i) : at.select(0, i);
      check_same(from, argsort(line, dim == 0 ? 0 : dim - 1));
    }
    check_same(gather(x, dim, at), values);
    check_same(top.first, sort(x, dim, true).first.narrow(dim, 0, 2));
    CHECK(at.is_contiguous());
  }
  CHECK(sort(tensor(3.0)).first.item<double>() == 3);
  CHECK(sort(tensor(3.0)).second.sizes() == IntList{});
  CHECK(topk(tensor(3.0), 1).second.item<int64_t>() == 0);
  CHECK(sort(zeros({0})).first.sizes() == IntList{0});
  CHECK(sort(zeros({0, 3})).second.sizes() == IntList{0, 3});
  CHECK(sort(zeros({3, 0}), 0).second.sizes() == IntList{3, 0});
  CHECK(topk(zeros({3, 2}), 0).second.sizes() == IntList{3, 0});
  // Gradients go to the elements that were selected, ties included.
  const Tensor w = tensor({1.0f, 2.0f, 2.0f, 0.0f}).set_requires_grad();
  (topk(w, 2).first * tensor({3.0f, 5.0f})).sum().backward();
  CHECK(doubles(w.grad()) == Doubles{0, 3, 5, 0});
}

TEST_CASE("multinomial: frequencies follow the weights, zero weights are never drawn") {
  manual_seed(12);
  const Tensor w = tensor({{1.0f, 0.0f, 3.0f, 4.0f}, {0.0f, 0.5f, 0.0f, 0.0f}});
  constexpr int64_t kDraws = 40000;
  const Tensor at = multinomial(w, kDraws, true);
  REQUIRE(at.sizes() == IntList{2, kDraws});
  const Doubles share = doubles(one_hot(at.select(0, 0), 4).sum({0}));
  const double want[] = {0.125, 0, 0.375, 0.5};
  // Five standard deviations.
  for (size_t i = 0; i < 4; ++i) {
    CHECK(std::fabs(share[i] / kDraws - want[i]) <= 5 * std::sqrt(want[i] / kDraws));
  }
  CHECK(at.select(0, 1).sum().item<int64_t>() == kDraws);
  CHECK(longs(multinomial(tensor({0.0f, 0.0f, 1e-38f}), 3, true)) == Longs{2, 2, 2});
  // Their share of the sum is no multiple of the smallest number.
  const Tensor least = multinomial(full({3}, 5e-324, kFloat64), kDraws, true);
  for (const double n : doubles(one_hot(least, 3).sum({0}))) {
    CHECK(std::fabs(n / kDraws - 1.0 / 3) < 0.012);
  }
}

TEST_CASE("multinomial without replacement: all different, in the order of drawing") {
  manual_seed(13);
  const Tensor w = tensor({1.0, 0.0, 3.0, 4.0}).expand({20000, 4});
  const Tensor at = multinomial(w, 3);
  CHECK(sort(at).first.to(kFloat64).mean({0}).to_vector<double>() == Doubles{0, 2, 3});
  // First by weight, then by weight among the rest: P(3 then 2) = 4/8 * 3/4.
  const Tensor first = at.select(1, 0), second = at.select(1, 1);
  auto share = [](const Tensor& t) { return t.to(kFloat64).mean().item<double>(); };
  CHECK(std::fabs(share(first == 3) - 0.5) < 0.02);
  CHECK(std::fabs(share(first == 2) - 0.375) < 0.02);
  CHECK(std::fabs(share((first == 3).to(kInt64) * (second == 2).to(kInt64)) - 0.375) < 0.02);
  // Weights of very different sizes and at the limits of the range, in every floating dtype.
  const Tensor far = tensor(Doubles{5e-324, 0, 1e-300, 1e300});
  CHECK(longs(multinomial(far, 3)) == Longs{3, 2, 0});
  for (DType t : {kFloat32, kBFloat16, kFloat16}) {
    CHECK(longs(sort(multinomial(ones({50}, t), 50)).first) == longs(arange(50)));
  }
}

TEST_CASE("multinomial: one draw a call, the same in both modes and in any layout") {
  const Tensor w = sampled({5, 7}, kFloat32, 0, 1);
  for (bool replacement : {false, true}) {
    manual_seed(5);
    const Tensor a = multinomial(w, 6, replacement), after = rand({4});
    CHECK(rng_state().draw == 2);
    manual_seed(5);
    check_same(multinomial(w.t().clone().t(), 6, replacement), a);
    check_same(rand({4}), after);
    manual_seed(5);
    check_same(multinomial(w.to(kFloat64), 6, replacement), a);
    // Rows have separate draws; a single row has those of the first.
    manual_seed(5);
    check_same(multinomial(w.select(0, 0), 6, replacement), a.select(0, 0));
    CHECK(difference(multinomial(ones({2, 50}), 20, replacement).select(0, 0),
                     multinomial(ones({2, 50}), 20, replacement).select(0, 1)) != "");
  }
  manual_seed(6);
  Tensors eager, graph;
  for (int i = 0; i < 4; ++i) eager.push_back(multinomial(w, 3));
  manual_seed(6);
  auto step = brrr::step([&] { return multinomial(w, 3); }, StepOptions{.require_graph = true});
  for (int i = 0; i < 4; ++i) {
    if (i == 2) step.freeze();
    graph.push_back(step());
  }
  check_same(graph, eager);
  CHECK(difference(eager[0], eager[1]) != "");
}

TEST_CASE("multinomial: bad weights throw, take no draw, and leave a step undone") {
  auto message = [](const Tensor& w, int64_t n, bool replacement) {
    return error_of([&] { multinomial(w, n, replacement); });
  };
  manual_seed(1);
  CHECK(message(tensor({1.0f, -1.0f}), 1, true) ==
        "multinomial: weight 1 of row 0 is -1; weights must be finite and not negative");
  CHECK(message(tensor({{1.0f, 1.0f}, {NAN, 1.0f}}), 1, true) ==
        "multinomial: weight 0 of row 1 is nan; weights must be finite and not negative");
  CHECK(message(tensor({INFINITY}), 1, true).find("weight 0 of row 0 is inf") != std::string::npos);
  CHECK(message(tensor({{1.0f, 1.0f}, {0.0f, 0.0f}}), 1, false) ==
        "multinomial: the weights of row 1 are all zero; one at least must be positive");
  CHECK(message(tensor({1.0f, 0.0f, 2.0f}), 3, false) ==
        "multinomial: 3 samples without replacement, but row 0 has 2 positive weights; draw fewer "
        "or with replacement");
  CHECK(message(tensor(Doubles{1e308, 1e308}), 1, true).find("sum to inf") != std::string::npos);
  CHECK(message(ones({3}), 4, false).find("multinomial: 4 samples without replacement of 3") == 0);
  CHECK(message(ones({3}), 0, true).find("multinomial: the number of samples") == 0);
  CHECK(message(ones({0}), 1, true).find("multinomial: takes weights [n]") == 0);
  CHECK(message(tensor(Longs{1, 2}), 1, true).find("multinomial: takes floating weights") == 0);
  CHECK(rng_state().draw == 0);
  CHECK(multinomial(zeros({0, 3}), 2).sizes() == IntList{0, 2});

  // Also in replays: the weights become invalid after an external has been written.
  const Tensor w = ones({2, 4}), count = zeros({1});
  auto step = brrr::step(
      [&] {
        count.add_(1.0);
        return multinomial(w * count, 2);
      },
      StepOptions{.require_graph = true});
  for (int i = 0; i < 3; ++i) step();
  const uint64_t draw = rng_state().draw;
  w.select(0, 1).fill_(0.0);
  CHECK(error_of([&] { step(); }).find("multinomial: the weights of row 1 are all zero") == 0);
  CHECK(count.item<double>() == 3);
  CHECK(rng_state().draw == draw);
  w.fill_(1.0);
  step();
  CHECK(count.item<double>() == 4);
  CHECK(step.stats().fallbacks == 0);
}

TEST_CASE("order ops: wrong arguments") {
  const Tensor x = ones({3, 4});
  CHECK(error_of([&] { tril(ones({3})); }) ==
        "tril: takes matrices [.., rows, cols], got float32[3]; unsqueeze a dim");
  CHECK(error_of([&] { triu(Tensor()); }).find("triu: ") == 0);
  CHECK(error_of([&] { cumsum(x, 2); }).find("cumsum: ") == 0);
  CHECK(error_of([&] { sort(x, 2); }).find("sort: ") == 0);
  CHECK(error_of([&] { argsort(Tensor()); }).find("argsort: ") == 0);
  CHECK(error_of([&] { topk(x, 5); }) ==
        "topk: k is 5, but takes 0 to 4 along dim 1 of float32[3, 4]");
  CHECK(error_of([&] { topk(x, -1, 0); }) ==
        "topk: k is -1, but takes 0 to 3 along dim 0 of float32[3, 4]");
  CHECK(error_of([&] { topk(tensor(1.0), 0); }) ==
        "topk: k is 0, but takes 1 to 1 along dim 0 of float32[]");
  CHECK(error_of([&] { multinomial(Tensor(), 1); }).find("multinomial: ") == 0);
}
