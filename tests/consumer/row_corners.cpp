// User-defined row ops whose lambdas omit operands, select between scalars, or give a scalar where
// elements are expected.
#include <brrr/brrr.h>
#include <brrr/row.h>

#include <cmath>
#include <limits>

#include "check.h"

using namespace brrr;

// A namespace with operators of its own and without `using namespace brrr`.
namespace app {
struct Vector {
  float x;
};
[[maybe_unused]] inline Vector operator-(Vector a, Vector b) { return {a.x - b.x}; }
[[maybe_unused]] inline Vector operator/(Vector a, Vector b) { return {a.x / b.x}; }
[[maybe_unused]] inline bool operator<(Vector a, Vector b) { return a.x < b.x; }
const brrr::RowOp softmin{"app_softmin", "exp(min - x) / sum",
                          [](auto x) {
                            auto e = brrr::m::exp(brrr::row::min(x) - x);
                            return e / brrr::row::sum(e);
                          },
                          [](auto, auto y, auto g) { return y * (brrr::row::sum(g * y) - g); }};
}  // namespace app

// Ids that the gradient, or part of it, does not read.
const RowOp straight{"straight",
                     "2 x at the id, x elsewhere; its gradient passes",
                     Operands<Operand::Each, Operand::Id>{},
                     {"x", "id"},
                     [](auto x, auto id) { return m::where(row::is_at(id), x * 2.0, x); },
                     [](auto, auto, auto, auto g) { return g; }};
const RowOp unread{
    "unread", "x", Operands<Operand::Each, Operand::Id>{}, {"x", "id"}, [](auto x, auto) {
      return x + 0.0;
    }};
const RowOp picked{
    "picked",
    "x at the id",
    Operands<Operand::Each, Operand::Id>{},
    {"x", "id"},
    [](auto x, auto id) { return row::pick(x, id) + row::sum(m::where(row::is_at(id), x, 0.0)); }};
const RowOp two_ids{
    "two_ids",
    "the element at a, twice if b is there, too",
    Operands<Operand::Each, Operand::Id, Operand::Id>{},
    {"x", "a", "b"},
    [](auto x, auto a, auto b) { return row::pick(m::where(row::is_at(b), x * 2.0, x), a); }};
// Scalars of both branches, in the first derivative and in a gradient.
const RowOp bent{"bent", "a x^2, a 0.1 beyond 1/4 and 0.3 up to it",
                 [](auto x) { return m::where(x > 0.25, 0.1, 0.3) * x * x; }};
const RowOp large{"large", "1e300 x or -1e300 x",
                  [](auto x) { return m::where(x > 0.0, 1e300, -1e300) * x; }};
const RowOp bent_gradient{
    "bent_gradient", "the same, told its gradient",
    [](auto x) { return m::where(x > 0.25, 0.1, 0.3) * x * x; },
    [](auto x, auto, auto g) { return m::where(x > 0.25, 0.2, 0.6) * x * g; }};
const RowOp binarize{"binarize", "1 above 0, else -1",
                     [](auto x) { return m::where(x > 0.0, 1.0, -1.0); }};
// A gradient that reads no operand but the scalar.
const RowOp softcap{"softcap",
                    "c tanh(x / c)",
                    Operands<Operand::Each, Operand::Scalar>{},
                    {"x", "c"},
                    [](auto x, auto c) { return m::tanh(x / c) * c; },
                    [](auto, auto c, auto y, auto g) {
                      const auto t = y / c;
                      return g * (1.0 - t * t);
                    }};
// Sums over rows of values that elements, or rows, share.
const RowOp row_sums{"row_sums",
                     "sum(x + b)",
                     Operands<Operand::Each, Operand::Bias>{},
                     {"x", "b"},
                     [](auto x, auto b) { return row::sum(x + b); },
                     [](auto, auto, auto, auto g) {
                       return std::tuple{g, row::over_rows(g)};
                     }};
const RowOp counted{"counted",
                    "the number of rows times n",
                    Operands<Operand::Each, Operand::Number>{},
                    {"x", "n"},
                    [](auto x, auto n) { return row::total(row::sum(x) * 0.0 + n); }};

// Results that the rows share, or sums over them, with user-defined gradients.
const RowOp only_shared{"only_shared",
                        "w in each row",
                        Operands<Operand::Each, Operand::Weight>{},
                        {"x", "w"},
                        [](auto x, auto w) { return m::where(row::sum(x) > 0.0, w, w); }};
const RowOp sums{"sums", "sums over the rows", [](auto x) { return row::over_rows(x * x); },
                 [](auto x, auto, auto g) { return 2.0 * x * g; }};
// Its gradients read the other operand only.
const RowOp times{"times", "x y", [](auto x, auto y) { return x * y; },
                  [](auto x, auto y, auto, auto g) {
                    return std::tuple{g * y, g * x};
                  }};

const RowOp passed{"passed", "2 x - max, 0 for NaN",
                   [](auto x) { return m::where(x == x, x, 0.0) * 2.0 - row::max(x); }};

const RowOp standardised{"standardised", "(x - mean) sqrt(n - 1) / sqrt(sum((x - mean)^2))",
                         [](auto x) {
                           const auto d = x - row::mean(x);
                           const auto n = m::max(row::count(x) - 1.0, 1.0);
                           return d * m::sqrt(n) * m::rsqrt(row::sum(m::square(d)));
                         }};

// The maximum of a row without elements, and a per-row scalar of one, are defined, for the gradient
// as for the value.
const RowOp largest{"largest",
                    "the sum of the rows' largest elements, times n",
                    Operands<Operand::Each, Operand::Number>{},
                    {"x", "n"},
                    [](auto x, auto n) { return row::total(row::max(row::max(x))) * n; }};
// Its gradient does not state how it depends on the gradient of the result.
const RowOp forgetful{"forgetful", "x^2", [](auto x) { return x * x; },
                      [](auto x, auto, auto g) { return 2.0 * x * m::constant(g); }};

static bool checked(const RowOp& op, const std::vector<Tensor>& in) {
  const auto r = gradcheck(
      [&](const std::vector<Tensor>& v) { return v.size() == 1 ? op(v[0]) : op(v[0], v[1]); }, in,
      {.second_order = true});
  if (!r) std::printf("%s: %s\n", op.name, r.report.c_str());
  return static_cast<bool>(r);
}

static int check_ids() {
  const Tensor x = tensor({{1.0f, 2.0f}, {3.0f, 4.0f}}).set_requires_grad(), none;
  straight(x, tensor({0, 1})).sum().backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>(4, 1));
  const auto once = grad({straight(x * x, tensor({0, 1})).sum()}, {x}, {.create_graph = true});
  CHECK(grad({once[0].sum()}, {x})[0].to_vector<float>() == std::vector<float>(4, 2));
  CHECK(unread(x, none).detach().to_vector<float>() == x.detach().to_vector<float>());
  // A 0-d tensor has a single position.
  const Tensor one = tensor(3.0).set_requires_grad();
  picked(one, tensor(0)).backward();
  CHECK(one.grad().item<double>() == 2.0);
  const std::string words = error_of([&] {
    picked(x, tensor({std::numeric_limits<int64_t>::min(), int64_t{0}}));
  });
  CHECK(words.find("is out of range for 2 classes") != words.npos);
  return 0;
}

// Kernels generated for a step read ids as the library's kernels do.
static int check_two_ids() {
  const Tensor x = randn({3, 1000}), a = tensor({1, 2, 999}), b = tensor({0, 2, 1});
  const auto f = [&] { return two_ids(x * 1.5, a, b) + 1.0; };
  auto step = brrr::step(f, {.build_at_first_call = true});
  for (int k = 0; k < 3; ++k) CHECK(step().to_vector<float>() == f().to_vector<float>());
  return 0;
}

static int check_numbers() {
  const Tensor x = tensor({1.0, 0.25}).to(kFloat64).set_requires_grad();
  bent(x).sum().backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{0.1 + 0.1, 0.3 * 0.25 + 0.3 * 0.25});
  const auto g = grad({bent_gradient(x).sum()}, {x}, {.create_graph = true});
  const auto second = grad({g[0].sum()}, {x});
  CHECK(second[0].to_vector<double>() == std::vector<double>{0.2, 0.6});
  const Tensor hole = tensor({1.0f, std::nanf(""), 3.0f}).set_requires_grad();
  passed(hole).sum().backward();
  CHECK(hole.grad().to_vector<float>() == std::vector<float>{2, 0, -1});
  x.set_grad({});
  large(x).sum().backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>(2, 1e300));
  return 0;
}

// Pointwise ops: integer operands, constants, formulas computed in float64.
const PointwiseOp by_count{"by_count",
                           "x^2 n^2",
                           {},
                           [](auto x, auto n) { return x * x * (n * n); },
                           [](auto x, auto n, auto, auto g) { return g * x * 2.0 * (n * n); }};
const PointwiseOp exact{
    "exact", "x + 1e8 - 1e8", {.wide = true}, [](auto x) { return (x + 1e8) - 1e8; }};

// A generated operand, one operand too many and one too few.
const NumberOp ramp{"ramp", "x times its place", {}, Integers<0, kNumber>{}, [](auto x, auto i) {
                      return x * m::like(x, i);
                    }};
const PointwiseOp lerp3{
    "lerp3", "a + t (b - a)", {}, [](auto a, auto b, auto t) { return a + t * (b - a); }};

static int check_operands() {
  const Tensor x = ones({4}), turned = ones({4, 2}).slice(1, 0, 1).reshape({4});
  for (const Tensor& of : {x, turned}) {
    CHECK(call(ramp, of).to_vector<float>() == std::vector<float>({0, 1, 2, 3}));
  }
  CHECK(error_of([&] { call(lerp3, x, x); }) == "lerp3: takes 3 operands, got 2");
  CHECK(error_of([&] { call(lerp3, x); }) == "lerp3: takes 3 operands, got 1");
  CHECK(error_of([&] { call(exact, x, x); }) == "exact: takes 1 operands, got 2");
  CHECK(error_of([&] {
          PointwiseCall c(exact);
          for (int i = 0; i < 40; ++i) c.add(x);
        }) == "exact: takes 1 operands, got more");
  return 0;
}

static int check_pointwise() {
  const Tensor x = ones({2}).set_requires_grad(), n = full({2}, 200, kUInt8);
  const auto g = grad({call(by_count, x, n).sum()}, {x}, {.create_graph = true});
  CHECK(grad({g[0].sum()}, {x})[0].to_vector<float>() == std::vector<float>(2, 80000));
  CHECK(call(exact, full({2}, 1.25)).to_vector<float>() == std::vector<float>(2, 1.25));
  return 0;
}

// A leaf that only the tape references, one use of which has no gradient, dies with its edges.
static int check_leaf() {
  const Tensor v = ones({1000}).set_requires_grad();
  Tensor loss;
  {
    const Tensor first = (v * 2.0).sum(), w = ones({1000}).set_requires_grad();
    w.set_grad(ones({1000}));
    const Tensor none = binarize(w).sum();
    loss = first + (w * 3.0).sum() + none;
  }
  loss.backward();
  CHECK(v.grad().to_vector<float>() == std::vector<float>(1000, 2));
  return 0;
}

static int check_without_elements() {
  const Tensor n = tensor(2.0f).set_requires_grad();
  const Tensor y = largest(ones({2, 0}), n);
  y.backward();
  CHECK(y.item<float>() == -INFINITY);
  CHECK(n.grad().item<float>() == -INFINITY);
  const Tensor x = ones({2, 0}).set_requires_grad();
  CHECK(grad({largest(x, n)}, {x})[0].sizes() == x.sizes());
  return 0;
}

static int check_varying() {
  const Tensor x = randn({6, 5}).set_requires_grad();
  double c = 10;
  auto step = brrr::step([&] {
    x.set_grad({});
    const Tensor loss = softcap(x, c).sum();
    loss.backward();
    return loss;
  });
  for (; c < 20; ++c) step();
  CHECK(step.stats().recordings == 2);
  return 0;
}

int main() {
  manual_seed(0);
  const Tensor a = randn({4, 7}).to(kFloat64), b = randn({7}).to(kFloat64);
  const Tensor two = full({}, 2.0, kFloat64);
  CHECK(checked(app::softmin, {a}));
  CHECK(checked(row_sums, {a, b}));
  CHECK(checked(counted, {a, two}));
  CHECK(checked(only_shared, {a, b}));
  CHECK(checked(sums, {a}));
  CHECK(checked(standardised, {a}));
  CHECK(counted(a, two).item<double>() == 8.0);
  const auto r = gradcheck([](const std::vector<Tensor>& v) { return forgetful(v[0]); }, {a},
                           {.second_order = true});
  CHECK(!r);
  // The requested gradient is as exact as its operand.
  const Tensor x = randn({2, 3}).set_requires_grad(), y = ones({2, 3}, kBFloat16);
  times(x, y).backward(full({2, 3}, 1.0009765625));
  CHECK(x.grad().to_vector<float>() == std::vector<float>(6, 1.0009765625f));
  return check_ids() || check_two_ids() || check_numbers() || check_operands() ||
         check_pointwise() || check_leaf() || check_varying() || check_without_elements();
}
