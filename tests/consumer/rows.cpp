// User-defined row ops: values, gradients of both orders, both modes.
#include <brrr/brrr.h>
#include <brrr/row.h>

#include <cmath>

#include "check.h"

using namespace brrr;

const RowOp softmin{"softmin", "exp(min - x) / sum",
                    [](auto x) {
                      auto e = m::exp(m::constant(row::min(x)) - x);
                      return e / row::sum(e);
                    },
                    [](auto, auto y, auto g) { return y * (row::sum(g * y) - g); }};

// The mean over the rows of max(0, 1 - t x) summed over each.
const RowOp hinge_loss{"hinge_loss", "mean over rows of sum(max(1 - x t, 0))", [](auto x, auto t) {
                         const auto loss = row::sum(m::max(1.0 - x * t, 0.0));
                         return row::total(loss) / row::total(loss * 0.0 + 1.0);
                       }};

// Operands of every other kind.
const RowOp scaled{"scaled",
                   "x p + n",
                   Operands<Operand::Each, Operand::PerRow, Operand::Number>{},
                   {"x", "p", "n"},
                   [](auto x, auto p, auto n) { return x * p + n; }};
const RowOp picked{
    "picked",
    "2 x at the id, x elsewhere, and that element added",
    Operands<Operand::Each, Operand::Id>{},
    {"x", "id"},
    [](auto x, auto id) { return m::where(row::is_at(id), x * 2.0, x) + row::pick(x, id); }};
const RowOp shifted{
    "shifted", "x + a", Operands<Operand::Each, Operand::Scalar>{}, {"x", "a"}, [](auto x, auto a) {
      return x + a;
    }};

// A fold of a per-row scalar counts it once for each element of the row.
const RowOp nested{
    "nested",
    "x times the sum of p, and the mean of the sum",
    Operands<Operand::Each, Operand::PerRow>{},
    {"x", "p"},
    [](auto x, auto p) { return x * row::sum(p) + row::mean(row::sum(m::square(x))); }};
const RowOp fused{"fused", "x^3 + 1, each product and sum as one",
                  [](auto x) { return m::fma(m::square(x), x, 1.0); }};

// Gradients that read no elements, are a per-row scalar, or are not given.
const RowOp row_sum{"row_sum", "sum", [](auto x) { return row::sum(x); },
                    [](auto, auto, auto g) { return g; }};
const RowOp weighted{"weighted",
                     "sum(x w)",
                     Operands<Operand::Each, Operand::Weight>{},
                     {"x", "w"},
                     [](auto x, auto w) { return row::sum(x * w); },
                     [](auto, auto w, auto, auto g) { return g * w; }};
const RowOp twice{
    "twice", "2 n", Operands<Operand::Each, Operand::Number>{}, {"x", "n"}, [](auto, auto n) {
      return n * 2.0;
    }};
const RowOp class_weighted{"class_weighted",
                           "-log softmax(x)[id] weight[id]",
                           Operands<Operand::Each, Operand::Id, Operand::Weight>{},
                           {"x", "id", "w"},
                           [](auto x, auto id, auto w) {
                             const auto lp = x - m::log(row::sum(m::exp(x)));
                             return -(row::pick(lp, id) * row::pick(w, id));
                           }};
// An elementwise gradient for each operand, of which a call may need only some.
const RowOp product{"product", "x y z", [](auto x, auto y, auto z) { return x * y * z; },
                    [](auto x, auto y, auto z, auto, auto g) {
                      return std::tuple(g * y * z, g * x * z, g * x * y);
                    }};
const RowOp quoted{"a \"quoted\" \\", "x + 1", [](auto x) { return x + 1.0; }};
const RowOp number_first{"number_first", "max(0.3, 2^x) + 2 x + x",
                         [](auto x) { return m::max(0.3, m::pow(2.0, x)) + m::fma(2.0, x, x); }};

static int check_operands() {
  const Tensor a = tensor({{1.0f, 2.0f, 3.0f}, {4.0f, 5.0f, 6.0f}}), none;
  const Tensor p = tensor({{2.0f}, {3.0f}}), n = tensor(1.0f), ids = tensor({0, 0});
  CHECK(scaled(a, p, n).to_vector<float>() == std::vector<float>{3, 5, 7, 13, 16, 19});
  CHECK(picked(a, ids).to_vector<float>() == std::vector<float>{3, 3, 4, 12, 9, 10});
  CHECK(shifted(a, 1).to_vector<float>() == std::vector<float>{2, 3, 4, 5, 6, 7});
  const auto fails = [](const auto& f, const std::string& part) {
    const std::string words = error_of(f);
    if (words.find(part) == words.npos) std::printf("said: %s\n", words.c_str());
    return words.find(part) != words.npos;
  };
  CHECK(fails([&] { scaled(a, full({1, 1}, 2.0), n); }, "scaled: p is float32[1, 1], but takes"));
  CHECK(fails([&] { scaled(a, a, n); }, "scaled: p is float32[2, 3], but takes a number for each"));
  CHECK(fails([&] { scaled(a, none, n); }, "scaled: p is undefined"));
  CHECK(fails([&] { scaled(a, p, p); },
              "scaled: n is float32[2, 1], but takes a single number; use reshape({})"));
  CHECK(fails([&] { scaled(a, p); }, "scaled: takes 3 operands, got 2"));
  CHECK(fails([&] { picked(a, none); }, "picked: id is undefined"));
  CHECK(fails([&] { picked(a, tensor({0, 3})); }, "id 3 at position 1 is out of range"));
  CHECK(fails([&] { shifted(a, a); }, "shifted: a is a tensor; give a number"));
  CHECK(fails([&] { softmin(2.0); }, "softmin: operand 0 is a number; give a tensor"));
  return 0;
}

static int check_gradients() {
  const Tensor x = tensor({{1.0f, 2.0f, 3.0f}, {4.0f, 5.0f, 6.0f}}).set_requires_grad();
  const Tensor w = tensor({1.0f, 2.0f, 4.0f}), ids = tensor({2, 0});
  const std::vector<float> ones_of_2{1, 1, 0, 1, 1, 0};
  row_sum(x.slice(1, 0, 2)).sum().backward();
  CHECK(x.grad().to_vector<float>() == ones_of_2);
  CHECK(twice(x.detach(), tensor(7.0f)).item<float>() == 14.0f);
  x.set_grad({});
  weighted(x, w).sum().backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 2, 4, 1, 2, 4});
  const std::string none =
      error_of([&] { weighted(x, w.clone().set_requires_grad()).sum().backward(); });
  CHECK(none.find("weighted: its gradient lambda returns none for w") != none.npos);
  const auto r =
      gradcheck([&](const std::vector<Tensor>& v) { return class_weighted(v[0], ids, v[1]); },
                {x.detach().to(kFloat64), w.to(kFloat64)}, {.second_order = true});
  if (!r) std::puts(r.report.c_str());
  CHECK(r);
  return 0;
}

static int check_wanted(Mode mode) {
  const Tensor in[] = {randn({9, 20}), randn({9, 20}), randn({9, 20})};
  for (int wanted = 1; wanted < 8; ++wanted) {
    Tensor x[3];
    for (int k = 0; k < 3; ++k) x[k] = in[k].clone().set_requires_grad(wanted >> k & 1);
    auto step = brrr::step([&] { product(x[0], x[1], x[2]).sum().backward(); }, mode);
    step();
    for (int k = 0; k < 3; ++k) {
      CHECK(x[k].grad().defined() == (wanted >> k & 1));
      if (!x[k].grad().defined()) continue;
      const Tensor want = k == 0 ? in[1] * in[2] : k == 1 ? in[0] * in[2] : in[0] * in[1];
      CHECK(x[k].grad().to_vector<float>() == want.to_vector<float>());
    }
  }
  return 0;
}

// `a` of shifted, a scalar that varies, is read on each call, so two recordings are needed.
static Tensor train(Mode mode) {
  manual_seed(1);
  const Tensor w = randn({6, 5}).set_requires_grad(), x = randn({40, 5}), t = sign(randn({40, 6}));
  double a = 0;
  auto step = brrr::step(
      [&] {
        const Tensor y = softmin(shifted(linear(x, w), a) * a);
        const Tensor loss = hinge_loss(linear(x, w), t) + y.square().sum();
        w.set_grad({});
        loss.backward();
        NoGradGuard guard;
        w.sub_(w.grad() * 0.1);
        return loss;
      },
      mode);
  for (; a < 10; ++a) step();
  return mode == Mode::Graph && step.stats().recordings > 2 ? Tensor() : w.detach();
}

// A name with quotes does not break the DOT output.
static int check_picture() {
  auto step = brrr::step([](const Tensor& x) { return quoted(x); });
  step(ones({2, 3}));
  CHECK(step.dot().find(R"(label="a \"quoted\" \\\n)") != std::string::npos);
  return 0;
}

int main() {
  manual_seed(0);
  const Tensor x = tensor({{1.0f, 2.0f, 4.0f}});
  const double total = 1 + std::exp(-1.0) + std::exp(-3.0);
  CHECK(std::fabs(softmin(x).select(1, 1).item<double>() - std::exp(-1.0) / total) < 1e-6);
  const auto checked = [](const RowOp& op, const std::vector<Tensor>& in) {
    const auto r = gradcheck(
        [&](const std::vector<Tensor>& v) { return v.size() == 1 ? op(v[0]) : op(v[0], v[1]); }, in,
        {.second_order = true});
    if (!r) std::puts(r.report.c_str());
    return static_cast<bool>(r);
  };
  const Tensor a = randn({4, 7}).to(kFloat64), b = sign(randn({4, 7})).to(kFloat64);
  CHECK(checked(softmin, {a}));
  CHECK(checked(hinge_loss, {a, b}));
  CHECK(checked(nested, {a, rand({4, 1}).to(kFloat64)}));
  CHECK(checked(fused, {a}));
  CHECK(checked(number_first, {a}));
  const Tensor ids = randint(0, 7, {4});
  const auto r = gradcheck([&](const std::vector<Tensor>& v) { return picked(v[0], ids); }, {a},
                           {.second_order = true});
  CHECK(r);
  if (check_operands() || check_gradients() || check_picture()) return 1;
  if (check_wanted(Mode::Eager) || check_wanted(Mode::Graph)) return 1;
  const Tensor eager = train(Mode::Eager), graph = train(Mode::Graph);
  CHECK(graph.defined());
  CHECK(eager.to_vector<float>() == graph.to_vector<float>());
  return 0;
}
