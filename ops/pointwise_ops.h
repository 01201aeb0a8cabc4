#pragma once
// Pointwise ops: arithmetic, comparison, logic, functions of one variable, activations.
//
// Shapes broadcast and dtypes promote as in PyTorch. Unless a line says otherwise the result has
// the promoted dtype; functions marked (float) convert integer and bool inputs to float32. A scalar
// out of an integer dtype's range is compared exactly, saturates as a bound (clamp, minimum,
// maximum), is an Error in where, and is otherwise exact in int64: the result keeps its low bits.

#include <string>

#include "core/tensor.h"

namespace brrr {

// --- arithmetic: arithmetic.cpp ------------------------------------------------------------------
Tensor add(const Tensor& a, const Tensor& b);  ///< a + b
Tensor add(const Tensor& a, Scalar b);
Tensor sub(const Tensor& a, const Tensor& b);  ///< a - b; not of bool tensors
Tensor sub(const Tensor& a, Scalar b);
Tensor sub(Scalar a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);  ///< a * b
Tensor mul(const Tensor& a, Scalar b);
Tensor div(const Tensor& a, const Tensor& b);  ///< a / b (float)
Tensor div(const Tensor& a, Scalar b);
Tensor div(Scalar a, const Tensor& b);
Tensor floor_div(const Tensor& a, const Tensor& b);  ///< floor(a / b); integers by zero give 0
Tensor floor_div(const Tensor& a, Scalar b);
Tensor remainder(const Tensor& a, const Tensor& b);  ///< a - floor(a / b) * b; has the sign of b
Tensor remainder(const Tensor& a, Scalar b);
Tensor neg(const Tensor& a);                       ///< -a; not of bool tensors
Tensor minimum(const Tensor& a, const Tensor& b);  ///< Propagates NaN.
Tensor minimum(const Tensor& a, Scalar b);
Tensor maximum(const Tensor& a, const Tensor& b);  ///< Propagates NaN.
Tensor maximum(const Tensor& a, Scalar b);
Tensor clamp(const Tensor& a, Scalar lo, Scalar hi);  ///< min(max(a, lo), hi); NaN stays NaN
/// a where the condition is not 0, else b; the condition may have any dtype.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
Tensor where(const Tensor& condition, Scalar a, const Tensor& b);
Tensor where(const Tensor& condition, Scalar a, Scalar b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& a) { return neg(a); }

// --- comparison and logic, results are bool: comparison.cpp --------------------------------------
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, Scalar b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, Scalar b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, Scalar b);
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, Scalar b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& a);
Tensor isnan(const Tensor& a);
Tensor isfinite(const Tensor& a);

inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
inline Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
inline Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
inline Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
inline Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator==(const Tensor& a, Scalar b) { return eq(a, b); }
inline Tensor operator==(Scalar a, const Tensor& b) { return eq(b, a); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator!=(const Tensor& a, Scalar b) { return ne(a, b); }
inline Tensor operator!=(Scalar a, const Tensor& b) { return ne(b, a); }
inline Tensor operator&(const Tensor& a, const Tensor& b) { return logical_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return logical_or(a, b); }
inline Tensor operator!(const Tensor& a) { return logical_not(a); }

// --- functions of one variable: unary.cpp --------------------------------------------------------
Tensor exp(const Tensor& x);         ///< (float)
Tensor expm1(const Tensor& x);       ///< exp(x) - 1 (float)
Tensor log(const Tensor& x);         ///< Natural logarithm (float)
Tensor log1p(const Tensor& x);       ///< log(1 + x) (float)
Tensor sqrt(const Tensor& x);        ///< (float)
Tensor rsqrt(const Tensor& x);       ///< 1 / sqrt(x) (float)
Tensor sin(const Tensor& x);         ///< (float)
Tensor cos(const Tensor& x);         ///< (float)
Tensor tanh(const Tensor& x);        ///< (float)
Tensor sigmoid(const Tensor& x);     ///< 1 / (1 + exp(-x)) (float)
Tensor erf(const Tensor& x);         ///< Gauss error function (float)
Tensor square(const Tensor& x);      ///< x * x
Tensor reciprocal(const Tensor& x);  ///< 1 / x (float)
Tensor abs(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);  ///< Ties round to even.
Tensor trunc(const Tensor& x);
/// x^e. Integers to an integer power wrap on overflow; a negative element of e gives 1 / x^-e
/// truncated (0 for x = 0), a negative integer scalar e is an Error.
Tensor pow(const Tensor& x, const Tensor& e);
Tensor pow(const Tensor& x, Scalar e);

// --- activations: activation.cpp -----------------------------------------------------------------
Tensor relu(const Tensor& x);                             ///< max(x, 0)
Tensor leaky_relu(const Tensor& x, double slope = 0.01);  ///< x > 0 ? x : slope * x (float)
Tensor elu(const Tensor& x, double alpha = 1.0);  ///< x > 0 ? x : alpha * (exp(x) - 1) (float)
/// x * Phi(x) (float); `approximate` "none" uses erf, "tanh" the approximation of Hendrycks and
/// Gimpel (2016).
Tensor gelu(const Tensor& x, const std::string& approximate = "none");
Tensor silu(const Tensor& x);      ///< x * sigmoid(x) (float)
Tensor softplus(const Tensor& x);  ///< log(1 + exp(x)), computed without overflow (float)

}  // namespace brrr
