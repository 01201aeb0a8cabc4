// Rows: functions of one variable, and pow.
#include "core/check.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kPlain{};
constexpr PointwiseTraits kPositive{.lo = 0.3, .hi = 3.0};
// The gradient of a step function: 0 (of either sign), even where g is infinite or NaN.
constexpr auto kFlat = [](auto g) { return m::where(m::isfinite(g), g, 0.0) * 0.0; };

const NumberOp cube_row{"cube", "x * x * x", kPlain, [](auto x) { return x * x * x; },
                        [](auto x, auto, auto g) { return g * (x * x * 3.0); }};
const NumberOp trunc_row{"trunc", "nearest integer towards zero", kPlain,
                         [](auto x) { return m::trunc(x); },
                         [](auto, auto, auto g) { return kFlat(g); }};
// d/de x^e = x^e log x, which is 0 at x = 0 for e >= 0. The branch not selected is kept finite too:
// second derivatives multiply it by 0.
const NumberOp pow_row{"pow",
                       "x^e",
                       {.lo = 0.3, .hi = 3.0},
                       [](auto x, auto e) { return m::pow(x, e); },
                       [](auto x, auto e, auto, auto g) {
                         const auto power = m::where(e == 0.0, 1.0, e) - 1.0;
                         return m::where(e == 0.0, 0.0, g * (e * m::pow(x, power)));
                       },
                       [](auto x, auto e, auto y, auto g) {
                         const auto flat = (x == 0.0) & (e >= 0.0);
                         return m::where(flat, 0.0, g * y * m::log(m::where(flat, 1.0, x)));
                       }};

}  // namespace

// Defines a row, its function and Tensor's member. `gradient` is an expression of x, the result y
// and the gradient g of y.
#define BRRR_FUNCTION(name, Row, doc, traits, value, gradient)                            \
  static const Row name##_row{                                                            \
      #name, doc, traits, [](auto x) { return value; },                                   \
      []([[maybe_unused]] auto x, [[maybe_unused]] auto y, auto g) { return gradient; }}; \
  Tensor name(const Tensor& x) { return call(name##_row, x); }                            \
  Tensor Tensor::name() const { return brrr::name(*this); }
// clang-format off
BRRR_FUNCTION(exp, PointwiseOp, "e^x", kPlain, m::exp(x), g * y)
BRRR_FUNCTION(expm1, PointwiseOp, "e^x - 1", kPlain, m::expm1(x), g * (y + 1.0))
BRRR_FUNCTION(log, PointwiseOp, "natural logarithm", kPositive, m::log(x), g / x)
BRRR_FUNCTION(log1p, PointwiseOp, "log(1 + x)", kPositive, m::log1p(x), g / (x + 1.0))
BRRR_FUNCTION(sqrt, PointwiseOp, "square root", kPositive, m::sqrt(x), g * 0.5 / y)
BRRR_FUNCTION(rsqrt, PointwiseOp, "1 / sqrt(x)", kPositive, m::rsqrt(x), g * -0.5 * y * y * y)
BRRR_FUNCTION(sin, PointwiseOp, "sine", kPlain, m::sin(x), g * m::cos(x))
BRRR_FUNCTION(cos, PointwiseOp, "cosine", kPlain, m::cos(x), -(g * m::sin(x)))
BRRR_FUNCTION(tanh, PointwiseOp, "hyperbolic tangent", kPlain, m::tanh(x), g * (1.0 - y * y))
BRRR_FUNCTION(sigmoid, PointwiseOp, "1 / (1 + exp(-x))", kPlain, m::sigmoid(x), g * y * (1.0 - y))
BRRR_FUNCTION(erf, PointwiseOp, "Gauss error function", kPlain, m::erf(x),
              g * 1.1283791670955126 * m::exp(-(x * x)))  // 2 / sqrt(pi)
BRRR_FUNCTION(square, NumberOp, "x * x", kPlain, x * x, g * (x + x))
BRRR_FUNCTION(reciprocal, PointwiseOp, "1 / x", kPositive, 1.0 / x, -(g * y * y))
BRRR_FUNCTION(abs, NumberOp, "absolute value", kPlain, m::abs(x), g * m::sign(x))
BRRR_FUNCTION(sign, NumberOp, "-1, 0 or 1", kPlain, m::sign(x), kFlat(g))
BRRR_FUNCTION(floor, NumberOp, "largest integer not above x", kPlain, m::floor(x), kFlat(g))
BRRR_FUNCTION(ceil, NumberOp, "smallest integer not below x", kPlain, m::ceil(x), kFlat(g))
BRRR_FUNCTION(round, NumberOp, "nearest integer, halves to even", kPlain, m::round(x), kFlat(g))
// clang-format on
#undef BRRR_FUNCTION
Tensor trunc(const Tensor& x) { return call(trunc_row, x); }
Tensor pow(const Tensor& x, const Tensor& e) { return call(pow_row, x, e); }
Tensor pow(const Tensor& x, Scalar e) {
  const bool floating = x.defined() && is_floating(x.dtype());
  BRRR_CHECK(floating || e.is_floating() || e.to_int() >= 0,
             "pow: integers to the negative integer power {}; convert with to(dtype) or give {}.0",
             e.to_int(), e.to_int());
  // Exact and cheap for small constant exponents, as in PyTorch.
  if (floating && e.to_double() == 2.0) return square(x);
  if (floating && e.to_double() == 3.0) return call(cube_row, x);
  return call(pow_row, x, e);
}

Tensor Tensor::pow(Scalar e) const { return brrr::pow(*this, e); }
Tensor Tensor::pow(const Tensor& e) const { return brrr::pow(*this, e); }

}  // namespace brrr
