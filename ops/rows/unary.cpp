// Rows: functions of one variable, and pow.
#include "core/check.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kPlain{};
constexpr PointwiseTraits kFloat{.result = Result::Float};
constexpr PointwiseTraits kPositive{.result = Result::Float, .lo = 0.3, .hi = 3.0};
constexpr auto kNone = [](auto, auto, auto g) { return g * 0.0; };  // A gradient of steps.

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
// d/de x^e = x^e log x, which is 0 at x = 0 for e >= 0.
const NumberOp pow_row{"pow",
                       "x^e",
                       {.lo = 0.3, .hi = 3.0},
                       [](auto x, auto e) { return m::pow(x, e); },
                       [](auto x, auto e, auto, auto g) {
                         return m::where(e == 0.0, 0.0, g * e * m::pow(x, e - 1.0));
                       },
                       [](auto x, auto e, auto y, auto g) {
                         return m::where((x == 0.0) & (e >= 0.0), 0.0, g * y * m::log(x));
                       }};

}  // namespace

Tensor exp(const Tensor& x) { return call(exp_row, x); }
Tensor expm1(const Tensor& x) { return call(expm1_row, x); }
Tensor log(const Tensor& x) { return call(log_row, x); }
Tensor log1p(const Tensor& x) { return call(log1p_row, x); }
Tensor sqrt(const Tensor& x) { return call(sqrt_row, x); }
Tensor rsqrt(const Tensor& x) { return call(rsqrt_row, x); }
Tensor sin(const Tensor& x) { return call(sin_row, x); }
Tensor cos(const Tensor& x) { return call(cos_row, x); }
Tensor tanh(const Tensor& x) { return call(tanh_row, x); }
Tensor sigmoid(const Tensor& x) { return call(sigmoid_row, x); }
Tensor erf(const Tensor& x) { return call(erf_row, x); }
Tensor square(const Tensor& x) { return call(square_row, x); }
Tensor reciprocal(const Tensor& x) { return call(reciprocal_row, x); }
Tensor abs(const Tensor& x) { return call(abs_row, x); }
Tensor sign(const Tensor& x) { return call(sign_row, x); }
Tensor floor(const Tensor& x) { return call(floor_row, x); }
Tensor ceil(const Tensor& x) { return call(ceil_row, x); }
Tensor round(const Tensor& x) { return call(round_row, x); }
Tensor trunc(const Tensor& x) { return call(trunc_row, x); }
Tensor pow(const Tensor& x, const Tensor& e) { return call(pow_row, x, e); }
Tensor pow(const Tensor& x, Scalar e) {
  const bool floating = x.defined() && is_floating(x.dtype());
  BRRR_CHECK(floating || e.is_floating() || e.to_int() >= 0,
             "pow: integers to the negative integer power {}; convert with to(dtype) or give {}.0",
             e.to_int(), e.to_int());
  // Exact and cheap where the exponent is a small constant, as PyTorch does.
  if (floating && e.to_double() == 2.0) return square(x);
  return call(pow_row, x, e);
}

Tensor Tensor::exp() const { return brrr::exp(*this); }
Tensor Tensor::expm1() const { return brrr::expm1(*this); }
Tensor Tensor::log() const { return brrr::log(*this); }
Tensor Tensor::log1p() const { return brrr::log1p(*this); }
Tensor Tensor::sqrt() const { return brrr::sqrt(*this); }
Tensor Tensor::rsqrt() const { return brrr::rsqrt(*this); }
Tensor Tensor::sin() const { return brrr::sin(*this); }
Tensor Tensor::cos() const { return brrr::cos(*this); }
Tensor Tensor::tanh() const { return brrr::tanh(*this); }
Tensor Tensor::sigmoid() const { return brrr::sigmoid(*this); }
Tensor Tensor::erf() const { return brrr::erf(*this); }
Tensor Tensor::square() const { return brrr::square(*this); }
Tensor Tensor::reciprocal() const { return brrr::reciprocal(*this); }
Tensor Tensor::abs() const { return brrr::abs(*this); }
Tensor Tensor::sign() const { return brrr::sign(*this); }
Tensor Tensor::floor() const { return brrr::floor(*this); }
Tensor Tensor::ceil() const { return brrr::ceil(*this); }
Tensor Tensor::round() const { return brrr::round(*this); }
Tensor Tensor::pow(Scalar e) const { return brrr::pow(*this, e); }
Tensor Tensor::pow(const Tensor& e) const { return brrr::pow(*this, e); }

}  // namespace brrr
