// Row ops of a user's own: values, gradients of both orders, both modes.
#include <brrr/brrr.h>
#include <brrr/row.h>

#include <cmath>
#include <cstdio>

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

#define CHECK(...)                                                      \
  if (!(__VA_ARGS__)) {                                                 \
    std::printf("line %d: %s does not hold\n", __LINE__, #__VA_ARGS__); \
    return 1;                                                           \
  }

static Tensor train(Mode mode) {
  manual_seed(1);
  const Tensor w = randn({6, 5}).set_requires_grad(), x = randn({40, 5}), t = sign(randn({40, 6}));
  auto step = brrr::step(
      [&] {
        const Tensor loss = hinge_loss(linear(x, w), t) + softmin(linear(x, w)).square().sum();
        w.set_grad({});
        loss.backward();
        NoGradGuard guard;
        w.sub_(w.grad() * 0.1);
        return loss;
      },
      mode);
  for (int i = 0; i < 10; ++i) step();
  return w.detach();
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
  const Tensor eager = train(Mode::Eager), graph = train(Mode::Graph);
  CHECK(eager.to_vector<float>() == graph.to_vector<float>());
  return 0;
}
