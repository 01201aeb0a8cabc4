// Rows: functions of one variable, and pow.
#include "core/check.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kPlain{};
constexpr PointwiseTraits kFloat{.result = Result::Float};
constexpr PointwiseTraits kPositive{.result = Result::Float, .lo = 0.3, .hi = 3.0};
// A gradient of steps: 0 of whatever sign, whatever follows.
constexpr auto kNone = [](auto, auto, auto g) { return m::min(m::max(g, -1.0), 1.0) * 0.0; };

const PointwiseOp exp_row{"exp", "e^x", kFloat, [](auto x) { return m::exp(x); },
                          [](auto, auto y, auto g) { return g * y; }};
const PointwiseOp expm1_row{"expm1", "e^x - 1", kFloat, [](auto x) { return m::expm1(x); },
                            [](auto, auto y, auto g) { return g * (y + 1.0); }};
const PointwiseOp log_row{"log", "natural logarithm", kPositive, [](auto x) { return m::log(x); },
                          [](auto x, auto, auto g) { return g / x; }};
const PointwiseOp log1p_row{"log1p", "log(1 + x)", kPositive, [](auto x) { return m::log1p(x); },
                            [](auto x, auto, auto g) { return g / (x + 1.0); }};
const PointwiseOp sqrt_row{"sqrt", "square root", kPositive, [](auto x) { return m::sqrt(x); },
                           [](auto, auto y, auto g) { return g * 0.5 / y; }};
const PointwiseOp rsqrt_row{"rsqrt", "1 / sqrt(x)", kPositive, [](auto x) { return m::rsqrt(x); },
                            [](auto, auto y, auto g) { return g * -0.5 * y * y * y; }};
const PointwiseOp sin_row{"sin", "sine", kFloat, [](auto x) { return m::sin(x); },
                          [](auto x, auto, auto g) { return g * m::cos(x); }};
const PointwiseOp cos_row{"cos", "cosine", kFloat, [](auto x) { return m::cos(x); },
                          [](auto x, auto, auto g) { return -(g * m::sin(x)); }};
const PointwiseOp tanh_row{"tanh", "hyperbolic tangent", kFloat, [](auto x) { return m::tanh(x); },
                           [](auto, auto y, auto g) { return g * (1.0 - y * y); }};
const PointwiseOp sigmoid_row{"sigmoid", "1 / (1 + exp(-x))", kFloat,
                              [](auto x) { return m::sigmoid(x); },
                              [](auto, auto y, auto g) { return g * y * (1.0 - y); }};
// 2 / sqrt(pi)
const PointwiseOp erf_row{
    "erf", "Gauss error function", kFloat, [](auto x) { return m::erf(x); },
    [](auto x, auto, auto g) { return g * 1.1283791670955126 * m::exp(-(x * x)); }};
const NumberOp square_row{"square", "x * x", kPlain, [](auto x) { return x * x; },
                          [](auto x, auto, auto g) { return g * (x + x); }};
const NumberOp cube_row{"cube", "x * x * x", kPlain, [](auto x) { return x * x * x; },
                        [](auto x, auto, auto g) { return g * (x * x * 3.0); }};
const PointwiseOp reciprocal_row{"reciprocal", "1 / x", kPositive, [](auto x) { return 1.0 / x; },
                                 [](auto, auto y, auto g) { return -(g * y * y); }};
const NumberOp abs_row{"abs", "absolute value", kPlain, [](auto x) { return m::abs(x); },
                       [](auto x, auto, auto g) { return g * m::sign(x); }};
const NumberOp sign_row{"sign", "-1, 0 or 1", kPlain, [](auto x) { return m::sign(x); }, kNone};
const NumberOp floor_row{"floor", "largest integer not above x", kPlain,
                         [](auto x) { return m::floor(x); }, kNone};
const NumberOp ceil_row{"ceil", "smallest integer not below x", kPlain,
                        [](auto x) { return m::ceil(x); }, kNone};
const NumberOp round_row{"round", "nearest integer, halves to even", kPlain,
                         [](auto x) { return m::round(x); }, kNone};
const NumberOp trunc_row{"trunc", "nearest integer towards zero", kPlain,
                         [](auto x) { return m::trunc(x); }, kNone};
// d/de x^e = x^e log x, which is 0 at x = 0 for e >= 0. What is chosen away is finite as well: its
// derivative is multiplied by 0.
const NumberOp pow_row{"pow",
                       "x^e",
                       {.lo = 0.3, .hi = 3.0},
                       [](auto x, auto e) { return m::pow(x, e); },
                       [](auto x, auto e, auto, auto g) {
                         const auto power = m::where(e == 0.0, 1.0, e) - 1.0;
                         return m::where(e == 0.0, 0.0, g * e * m::pow(x, power));
                       },
                       [](auto x, auto e, auto y, auto g) {
                         const auto flat = (x == 0.0) & (e >= 0.0);
                         return m::where(flat, 0.0, g * y * m::log(m::where(flat, 1.0, x)));
                       }};

}  // namespace

#define BRRR_FUNCTION(name)                                    \
  Tensor name(const Tensor& x) { return call(name##_row, x); } \
  Tensor Tensor::name() const { return brrr::name(*this); }
BRRR_FUNCTION(exp)
BRRR_FUNCTION(expm1)
BRRR_FUNCTION(log)
BRRR_FUNCTION(log1p)
BRRR_FUNCTION(sqrt)
BRRR_FUNCTION(rsqrt)
BRRR_FUNCTION(sin)
BRRR_FUNCTION(cos)
BRRR_FUNCTION(tanh)
BRRR_FUNCTION(sigmoid)
BRRR_FUNCTION(erf)
BRRR_FUNCTION(square)
BRRR_FUNCTION(reciprocal)
BRRR_FUNCTION(abs)
BRRR_FUNCTION(sign)
BRRR_FUNCTION(floor)
BRRR_FUNCTION(ceil)
BRRR_FUNCTION(round)
#undef BRRR_FUNCTION
Tensor trunc(const Tensor& x) { return call(trunc_row, x); }
Tensor pow(const Tensor& x, const Tensor& e) { return call(pow_row, x, e); }
Tensor pow(const Tensor& x, Scalar e) {
  const bool floating = x.defined() && is_floating(x.dtype());
  BRRR_CHECK(floating || e.is_floating() || e.to_int() >= 0,
             "pow: integers to the negative integer power {}; convert with to(dtype) or give {}.0",
             e.to_int(), e.to_int());
  // Exact and cheap where the exponent is a small constant, as PyTorch does.
  if (floating && e.to_double() == 2.0) return square(x);
  if (floating && e.to_double() == 3.0) return call(cube_row, x);
  return call(pow_row, x, e);
}

Tensor Tensor::pow(Scalar e) const { return brrr::pow(*this, e); }
Tensor Tensor::pow(const Tensor& e) const { return brrr::pow(*this, e); }

}  // namespace brrr
