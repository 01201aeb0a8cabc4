// The vector prelude, part 5, portable: float64 through libm, division with Python's signs, random
// bits to floats.
#ifndef BRRR_OPS_VEC_LANES_H
#define BRRR_OPS_VEC_LANES_H

#include "ops/vocabulary/vec_math.h"

namespace brrr::vx {

// --- float64 -------------------------------------------------------------------------------------

#define BRRR_VX_LANES(name, expression) \
  BRRR_VX f64 name(f64 v) {             \
    for (int i = 0; i < lanes; ++i) {   \
      double x = v[i];                  \
      v[i] = expression;                \
    }                                   \
    return v;                           \
  }
BRRR_VX_LANES(sqrt, BRRR_VX_LIBM(sqrt)(x))
BRRR_VX_LANES(floor, BRRR_VX_LIBM(floor)(x))
BRRR_VX_LANES(ceil, BRRR_VX_LIBM(ceil)(x))
BRRR_VX_LANES(trunc, BRRR_VX_LIBM(trunc)(x))
BRRR_VX_LANES(round, BRRR_VX_LIBM(nearbyint)(x))
BRRR_VX_LANES(exp, BRRR_VX_LIBM(exp)(x))
BRRR_VX_LANES(falling_exp, BRRR_VX_LIBM(exp)(x))
BRRR_VX_LANES(expm1, BRRR_VX_LIBM(expm1)(x))
BRRR_VX_LANES(log, BRRR_VX_LIBM(log)(x))
BRRR_VX_LANES(log1p, BRRR_VX_LIBM(log1p)(x))
BRRR_VX_LANES(sin, BRRR_VX_LIBM(sin)(x))
BRRR_VX_LANES(cos, BRRR_VX_LIBM(cos)(x))
BRRR_VX_LANES(unit_sin, BRRR_VX_LIBM(sin)(x))
BRRR_VX_LANES(unit_cos, BRRR_VX_LIBM(cos)(x))
BRRR_VX_LANES(tanh, BRRR_VX_LIBM(tanh)(x))
BRRR_VX_LANES(erf, BRRR_VX_LIBM(erf)(x))
#undef BRRR_VX_LANES

// Integers are integral already.
template <class V> BRRR_VX V floor(V x) { return x; }
template <class V> BRRR_VX V ceil(V x) { return x; }
template <class V> BRRR_VX V trunc(V x) { return x; }
template <class V> BRRR_VX V round(V x) { return x; }

BRRR_VX f64 normal_cdf(f64 x) { return fma(erf(x * 0x1.6a09e667f3bcdp-1), splat(0.5), splat(0.5)); }
BRRR_VX f64 rsqrt(f64 x) { return 1.0 / sqrt(x); }
BRRR_VX f64 sigmoid(f64 x) {
  f64 e = exp(-abs(x));
  return where(lt(x, f64{}), e, splat(1.0)) / (1.0 + e);
}

// --- division and powers -------------------------------------------------------------------------

// floor(a / b) or its remainder, which has the sign of b as in Python and torch.remainder.
// Integers: division by zero gives 0 for both, and the minimum over -1 wraps; neither may trap.
template <class T> BRRR_VX T divide_lane(T a, T b, bool want_remainder) {
  using U = decltype(sizeof(0));
  if (b == 0) return 0;
  if (b == -1) return want_remainder ? T(0) : T(U(0) - U(a));
  T q = a / b, r = a % b;
  bool below = r != 0 && (r < 0) != (b < 0);
  return want_remainder ? (below ? r + b : r) : (below ? q - 1 : q);
}

// a^b modulo 2^64, whose low bits are the narrower power's. A negative power is 1 / a^-b,
// truncated, and 0 for a = 0, as in PyTorch.
template <class T> BRRR_VX T power_lane(T a, T b) {
  using U = decltype(sizeof(0));
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? T(1) : a == -1 ? T(-1) : T(0);
  U y = 1, square = U(a);
  for (U n = U(b); n != 0; n >>= 1) {
    if (n & 1) y *= square;
    square *= square;
  }
  return T(y);
}

#define BRRR_VX_LANES(V, name, expression) \
  BRRR_VX V name(V a, V b) {               \
    for (int i = 0; i < lanes; ++i) {      \
      const auto x = a[i], y = b[i];       \
      a[i] = expression;                   \
    }                                      \
    return a;                              \
  }
BRRR_VX_LANES(i32, floor_div, divide_lane(x, y, false))
BRRR_VX_LANES(i64, floor_div, divide_lane(x, y, false))
BRRR_VX_LANES(i32, remainder, divide_lane(x, y, true))
BRRR_VX_LANES(i64, remainder, divide_lane(x, y, true))
BRRR_VX_LANES(i32, pow, power_lane(x, y))
BRRR_VX_LANES(i64, pow, power_lane(x, y))
BRRR_VX_LANES(f64, pow, BRRR_VX_LIBM(pow)(x, y))
BRRR_VX_LANES(f64, fmod, BRRR_VX_LIBM(fmod)(x, y))
#undef BRRR_VX_LANES

BRRR_VX_COLD void fmod_lanes(f32* a, const f32* b) {
  for (int i = 0; i < lanes; ++i) (*a)[i] = BRRR_VX_LIBM(fmodf)((*a)[i], (*b)[i]);
}

// C's fmod, exactly. While the quotient is below 2^23 one fma gives an exact remainder, off by at
// most one divisor if the quotient was rounded up.
BRRR_VX f32 fmod(f32 a, f32 b) {
  f32 q = trunc(a / b), r = fma(-q, b, a);
  b16 easy = lt(abs(q), splat(0x1p23f)) & lt(abs(b), splat(infinity));
  if (__builtin_expect(!all(easy), 0)) {
    f32 to = a, by = b;
    fmod_lanes(&to, &by);
    return to;
  }
  b16 beyond = ne((sign_bits(r) ^ sign_bits(a)), i32{}) & ne(r, f32{});
  f32 back = (f32)((i32)abs(b) | sign_bits(a));
  r = where(beyond, r + back, r);
  return (f32)(((i32)r & 0x7fffffff) | sign_bits(a));
}

// For floating point:
template <class V> BRRR_VX b16 is_below(V r, V b) { return ne(r, V{}) & (lt(r, V{}) ^ lt(b, V{})); }
template <class V> BRRR_VX V remainder(V a, V b) {
  V r = fmod(a, b);
  return where(is_below(r, b), r + b, r);
}
// Uses the exact remainder, so that floor_div(a, b) * b + remainder(a, b) is a.
template <class V> BRRR_VX V floor_div(V a, V b) {
  V r = fmod(a, b), q = (a - r) / b;
  q = where(is_below(r, b), q - 1, q);
  V f = floor(q);
  f = where(gt(q - f, V{} + 0.5f), f + 1, f);
  return where(eq(b, V{}), a / b, where(eq(q, V{}), q, f));
}

// --- random numbers ------------------------------------------------------------------------------

// Uniform in [0, 1): 24 bits, each value exact.
BRRR_VX f32 uniform01(u32 bits) { return to_f32((i32)(bits >> 8)) * 0x1p-24f; }

// A standard normal from two uniforms, by Box and Muller: radius * sin(2 pi u2 + pi quarter), where
// `quarter` 1/2 makes it the cosine. The angle is reduced in half turns, where that is exact.
BRRR_VX f32 box_muller(f32 u1, f32 u2, f32 quarter) {
  f32 half_turns = fma(u2, 2.0f, quarter);
  f32 k = half_turns + 0x1.8p+23f, t = half_turns - (k - 0x1.8p+23f);
  f32 radius = sqrt(log(1.0f - u1) * -2.0f);
  f32 r = t * 0x1.921fb6p+1f;
  return radius * sin_reduced(r, r, (i32)k << 31);
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_LANES_H
