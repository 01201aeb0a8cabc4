// Row ops of a user's own whose lambdas leave operands out, choose between numbers, or give a number
// where there are elements.
#include <brrr/brrr.h>
#include <brrr/row.h>

#include <limits>

#include "check.h"

using namespace brrr;

// Ids that the gradient, or all of it, does not read.
const RowOp straight{
    "straight",
    "2 x at the id, x elsewhere; its gradient passes",
    Operands<Operand::Each, Operand::Id>{},
    {"x", "id"},
    [](auto x, auto id) { return m::where(row::is_at(id), x * 2.0, x); },
    [](auto, auto, auto, auto g) { return g; }};
const RowOp unread{"unread",
                   "x",
                   Operands<Operand::Each, Operand::Id>{},
                   {"x", "id"},
                   [](auto x, auto) { return x + 0.0; }};
const RowOp picked{"picked",
                   "x at the id",
                   Operands<Operand::Each, Operand::Id>{},
                   {"x", "id"},
                   [](auto x, auto id) { return row::pick(x, id) + row::sum(m::where(row::is_at(id), x, 0.0)); }};
// Numbers of both branches, in the first order and in a gradient.
const RowOp bent{"bent", "a x^2, a 0.1 beyond 1/4 and 0.3 up to it",
                 [](auto x) { return m::where(x > 0.25, 0.1, 0.3) * x * x; }};
const RowOp large{"large", "1e300 x or -1e300 x",
                  [](auto x) { return m::where(x > 0.0, 1e300, -1e300) * x; }};
const RowOp bent_gradient{"bent_gradient", "the same, told its gradient",
                          [](auto x) { return m::where(x > 0.25, 0.1, 0.3) * x * x; },
                          [](auto x, auto, auto g) {
                            return m::where(x > 0.25, 0.2, 0.6) * x * g;
                          }};
const RowOp binarize{"binarize", "1 above 0, else -1",
                     [](auto x) { return m::where(x > 0.0, 1.0, -1.0); }};
// A gradient that reads no operand but the number.
const RowOp softcap{"softcap",
                    "c tanh(x / c)",
                    Operands<Operand::Each, Operand::Scalar>{},
                    {"x", "c"},
                    [](auto x, auto c) { return m::tanh(x / c) * c; },
                    [](auto, auto c, auto y, auto g) {
                      const auto t = y / c;
                      return g * (1.0 - t * t);
                    }};
// Sums over rows of what elements, or rows, have in common.
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
  CHECK(unread(x, none).detach().to_vector<float>() == x.detach().to_vector<float>());
  // Without rows, a place is the one there is.
  const Tensor one = tensor(3.0).set_requires_grad();
  picked(one, tensor(0)).backward();
  CHECK(one.grad().item<double>() == 2.0);
  const std::string words = error_of(
      [&] { picked(x, tensor({std::numeric_limits<int64_t>::min(), int64_t{0}})); });
  CHECK(words.find("is out of range for 2 classes") != words.npos);
  return 0;
}

static int check_numbers() {
  const Tensor x = tensor({1.0, 0.25}).to(kFloat64).set_requires_grad();
  bent(x).sum().backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{0.1 + 0.1, 0.3 * 0.25 + 0.3 * 0.25});
  const auto g = grad({bent_gradient(x).sum()}, {x}, {.create_graph = true});
  const auto second = grad({g[0].sum()}, {x});
  CHECK(second[0].to_vector<double>() == std::vector<double>{0.2, 0.6});
  x.set_grad({});
  large(x).sum().backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>(2, 1e300));
  return 0;
}

// A leaf that only the tape still knows, one use of which has no gradient, ends with its edges.
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
  CHECK(checked(row_sums, {a, b}));
  CHECK(checked(counted, {a, two}));
  CHECK(counted(a, two).item<double>() == 8.0);
  return check_ids() || check_numbers() || check_leaf() || check_varying();
}
