// Rows: activations.
#include "core/check.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kPlain{};
constexpr double kInvSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588;

const NumberOp relu_row{"relu", "max(x, 0)", kPlain, [](auto x) { return m::max(x, 0.0); },
                        [](auto, auto y, auto g) { return m::where(y > 0.0, g, 0.0); }};

const PointwiseOp leaky_relu_row{
    "leaky_relu", "x if positive, else slope * x", kPlain,
    [](auto x, auto slope) { return m::where(x > 0.0, x, x * slope); },
    [](auto x, auto slope, auto, auto g) { return m::where(x > 0.0, g, g * slope); }};

const PointwiseOp elu_row{
    "elu", "x if positive, else alpha * (exp(x) - 1)", kPlain,
    [](auto x, auto alpha) { return m::where(x > 0.0, x, m::expm1(x) * alpha); },
    // The branch not selected must be finite: second derivatives multiply it by 0.
    [](auto x, auto alpha, auto, auto g) {
      return m::where(x > 0.0, g, g * alpha * m::exp(m::where(x > 0.0, 0.0, x)));
    }};

const PointwiseOp gelu_row{"gelu", "x * Phi(x)", kPlain,
                           [](auto x) { return x * m::normal_cdf(x); },
                           [](auto x, auto, auto g) {
                             auto pdf = m::exp(x * x * -0.5) * kInvSqrt2Pi;
                             return g * (m::normal_cdf(x) + x * pdf);
                           }};

// (1 + tanh(u)) / 2 = sigmoid(2u), which is cheaper and keeps relative precision in the left tail.
const PointwiseOp gelu_tanh_row{"gelu_tanh", "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
                                kPlain,
                                [](auto x) {
                                  auto u = (x + x * x * x * 0.044715) * (2 * kSqrt2OverPi);
                                  return x * m::sigmoid(u);
                                },
                                [](auto x, auto, auto g) {
                                  auto u = (x + x * x * x * 0.044715) * (2 * kSqrt2OverPi);
                                  auto s = m::sigmoid(u);
                                  auto du = (x * x * (3.0 * 0.044715) + 1.0) * (2 * kSqrt2OverPi);
                                  return g * (s + x * s * (1.0 - s) * du);
                                }};

const PointwiseOp silu_row{"silu", "x * sigmoid(x)", kPlain,
                           [](auto x) { return x * m::sigmoid(x); },
                           [](auto x, auto, auto g) {
                             auto s = m::sigmoid(x);
                             return g * s * (x * (1.0 - s) + 1.0);
                           }};

const PointwiseOp softplus_row{"softplus", "log(1 + exp(x))", kPlain,
                               [](auto x) { return m::max(x, 0.0) + m::log1p(m::exp(-m::abs(x))); },
                               [](auto x, auto, auto g) { return g * m::sigmoid(x); }};

}  // namespace

Tensor relu(const Tensor& x) { return call(relu_row, x); }
Tensor leaky_relu(const Tensor& x, double slope) { return call(leaky_relu_row, x, slope); }
Tensor elu(const Tensor& x, double alpha) { return call(elu_row, x, alpha); }
Tensor gelu(const Tensor& x, const std::string& approximate) {
  BRRR_CHECK(approximate == "none" || approximate == "tanh",
             "gelu: approximate is \"{}\"; give \"none\" or \"tanh\"", approximate);
  return call(approximate == "none" ? gelu_row : gelu_tanh_row, x);
}
Tensor silu(const Tensor& x) { return call(silu_row, x); }
Tensor softplus(const Tensor& x) { return call(softplus_row, x); }

Tensor Tensor::relu() const { return brrr::relu(*this); }

}  // namespace brrr
