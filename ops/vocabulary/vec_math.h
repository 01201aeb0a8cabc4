// The vector prelude, part 4, portable: float32 mathematics.
//
// Branch-free float32 polynomials, valid for every input: NaN, infinities, signed zeros and
// denormals in and out. The largest errors measured, in units in the last place:
//   exp     0.87   expm1  1.5    log    0.85   log1p   1.5    sin  1.9   cos    2.0
//   tanh    1.4    erf    2.0    sigmoid 2.5   pow     1.2    sqrt 0.5   rsqrt  1.5
// (normal_cdf(x) - 1/2: 1.6)
// and floor, ceil, trunc, round are exact. (Every 31st of all floats; pow: 6 million samples.)
// Float64 goes to libm lane by lane: it is the reference, not the fast path.
// Several polynomials and ideas are Norbert Juffa's (public forum posts, BSD); others are Remez
// fits rounded to float one coefficient at a time.
#ifndef BRRR_OPS_VEC_MATH_H
#define BRRR_OPS_VEC_MATH_H

#include "ops/vocabulary/vec_convert.h"

namespace brrr::vx {

// --- fma, square root, rounding ------------------------------------------------------------------

BRRR_VX f32 fma(f32 a, f32 b, float c) { return fma(a, b, splat(c)); }
BRRR_VX f32 fma(f32 a, float b, f32 c) { return fma(a, splat(b), c); }
BRRR_VX f32 fma(f32 a, float b, float c) { return fma(a, splat(b), splat(c)); }

BRRR_VX f32 rsqrt(f32 x) { return 1.0f / sqrt(x); }
BRRR_VX f32 floor(f32 x) { return to_integral<Round::down>(x); }
BRRR_VX f32 ceil(f32 x) { return to_integral<Round::up>(x); }
BRRR_VX f32 trunc(f32 x) { return to_integral<Round::zero>(x); }
BRRR_VX f32 round(f32 x) { return to_integral<Round::even>(x); }

// --- sign, order, classes ------------------------------------------------------------------------

BRRR_VX f32 abs(f32 x) { return (f32)((i32)x & 0x7fffffff); }
BRRR_VX f64 abs(f64 x) { return (f64)((i64)x & 0x7fffffffffffffffL); }
BRRR_VX i32 abs(i32 x) { return where(lt(x, i32{}), (i32)(0u - (u32)x), x); }
BRRR_VX i64 abs(i64 x) { return where(lt(x, i64{}), (i64)(0ul - (u64)x), x); }
BRRR_VX i32 sign_bits(f32 x) { return (i32)x & (-0x7fffffff - 1); }

template <class V> BRRR_VX V lesser(V a, V b) { return where(lt(a, b), a, b); }
template <class V> BRRR_VX V greater(V a, V b) { return where(gt(a, b), a, b); }

// a where it is NaN, else b.
BRRR_VX f32 nan_or(f32 a, f32 b) { return where(isnan(a), a, b); }
template <class V> BRRR_VX V nan_or(V a, V b) { return where(ne(a, a), a, b); }

// sign(NaN) is NaN; zeros give +0. min and max propagate NaN.
template <class V> BRRR_VX V sign(V x) {
  return nan_or(x, where(gt(x, V{}), V{} + 1, where(lt(x, V{}), V{} - 1, V{})));
}
template <class V> BRRR_VX V min(V a, V b) { return nan_or(a, lesser(a, b)); }
template <class V> BRRR_VX V max(V a, V b) { return nan_or(a, greater(a, b)); }

BRRR_VX b16 isnan(f64 x) { return ne(x, x); }
template <class V> BRRR_VX b16 isfinite(V x) { return lt(abs(x), V{} + infinity); }

// --- exponentials --------------------------------------------------------------------------------

constexpr float log2e = 0x1.715476p+0f;
constexpr float ln2_high = 0x1.62e430p-1f, ln2_low = -0x1.05c610p-29f;

// round(x * reciprocal) for small x: a float of 2^23 or more has no fraction bits.
BRRR_VX f32 nearest_multiple(f32 x, float reciprocal) {
  return fma(x, reciprocal, 0x1.8p+23f) - 0x1.8p+23f;
}

// e^f with |f| <= ln(2) / 2.
BRRR_VX f32 exp_fraction(f32 f) {
  f32 p = fma(splat(0x1.694000p-10f), f, 0x1.125edcp-7f);
  p = fma(p, f, 0x1.555b5ap-5f);
  p = fma(p, f, 0x1.555450p-3f);
  p = fma(p, f, 0x1.fffff6p-2f);
  p = fma(p, f, 1.0f);
  return fma(p, f, 1.0f);
}
BRRR_VX f32 exp_remainder(f32 x, f32 i) { return fma(i, -ln2_low, fma(i, -ln2_high, x)); }
BRRR_VX f32 exp(f32 x) {
  f32 c = at_most(exp_operand(x), 89.0f), i = nearest_multiple(c, log2e);
  return exp_result(x, exp_fraction(exp_remainder(c, i)), i);
}
// The same results for -104 <= x <= 40.
BRRR_VX f32 exp_in_range(f32 x) {
  f32 i = nearest_multiple(x, log2e);
  return scale_down(exp_fraction(exp_remainder(x, i)), i);
}
// The same results for x <= 0. Generated code calls it where x is an element minus its row's
// maximum.
BRRR_VX f32 falling_exp(f32 x) {
  f32 c = falling_operand(x), i = nearest_multiple(c, log2e);
  return falling_result(x, exp_fraction(exp_remainder(c, i)), i);
}

// e^x - 1 = 2^i (e^f - 1) + (2^i - 1); halved, so that 2^128 need not be represented.
BRRR_VX f32 expm1(f32 x) {
  f32 c = at_least(at_most(x, 89.0f), -25.0f);
  f32 i = nearest_multiple(c, log2e), f = exp_remainder(c, i);
  f32 p = fma(splat(0x1.9c50e6p-13f), f, 0x1.6d4c16p-10f);
  p = fma(p, f, 0x1.1113acp-7f);
  p = fma(p, f, 0x1.5554eap-5f);
  p = fma(p, f, 0x1.555554p-3f);
  p = fma(p, f, 0.5f);
  p = fma(p * f, f, f);
  f32 half = (f32)((convert<i32>(i) + 126) << 23);
  f32 r = fma(p, half, half - 0.5f);
  r = where(eq(i, f32{}), p, r + r);
  return (f32)((i32)r | sign_bits(x));  // the sum above loses the sign of -0
}

BRRR_VX f32 sigmoid(f32 x) {  // from e^-|x|, so that the left tail keeps its precision
  f32 e = falling_exp(-abs(x));
  return quotient(where(lt(x, f32{}), e, splat(1.0f)), 1.0f + e);
}

BRRR_VX f32 tanh(f32 x) {
  f32 t = abs(x), s = t * t;
  f32 p = fma(splat(-0x1.828776p-8f), s, 0x1.54c3c2p-6f);
  p = fma(p, s, -0x1.b89abap-5f);
  p = fma(p, s, 0x1.1109bep-3f);
  p = fma(p, s, -0x1.55553ep-2f);
  p = fma(p * s, t, t);
  f32 e = exp_in_range(at_most(t + t, 20.0f));
  f32 r = where(gt(t, splat(0.6f)), 1.0f - quotient(splat(2.0f), e + 1.0f), p);
  return (f32)((i32)r | sign_bits(x));
}

// Phi(t) - 1/2 for 0 <= t, Phi being the normal CDF: sixteen intervals around multiples of h, in
// each a polynomial c0 + u (c1 + u (...)) of u = t - n h. h is such that Phi(n h) - 1/2 is close to
// a float for every n; at n = 0 it is 0, so that small results keep their relative precision. From
// 5.56 on it is 1/2. `rest` is the rounding error of t.
template <class... Rest> BRRR_VX f32 above_half(f32 t, Rest... rest) {
  BRRR_VX_TABLE c5 = {0x1.6e53b2p-7f,  0x1.cdb25ep-8f,  0x1.37f64cp-11f,  -0x1.3e7d8cp-8f,
                      -0x1.8bde88p-8f, -0x1.01042ap-8f, -0x1.199adcp-10f, 0x1.6c614ep-11f,
                      0x1.2e0702p-10f, 0x1.ce69e6p-11f, 0x1.f9a636p-12f,  0x1.b285bep-13f,
                      0x1.31566cp-14f, 0x1.660b4ap-16f, 0x1.62ffa6p-18f,  0x1.1b90cep-15f};
  BRRR_VX_TABLE c4 = {-0x1.e134e6p-12f, 0x1.0573a0p-6f,   0x1.7589e8p-6f,   0x1.2bfda8p-6f,
                      0x1.0580d6p-7f,   -0x1.59bef2p-10f, -0x1.758e3cp-8f,  -0x1.7f5cf8p-8f,
                      -0x1.0967cep-8f,  -0x1.1eccd8p-9f,  -0x1.dd8bd2p-11f, -0x1.38de4ap-12f,
                      -0x1.64bc34p-14f, -0x1.849b02p-15f, 0x1.c519ccp-16f,  0x1.724542p-15f};
  BRRR_VX_TABLE c3 = {-0x1.102076p-4f, -0x1.bcaed0p-5f, -0x1.96add6p-6f, 0x1.8c63ccp-8f,
                      0x1.9d8472p-6f,  0x1.e32bb6p-6f,  0x1.84bfbap-6f,  0x1.ea3746p-7f,
                      0x1.fb563ep-8f,  0x1.b8a890p-9f,  0x1.454b34p-10f, 0x1.9b6bfap-12f,
                      0x1.c024b2p-14f, 0x1.a5fd82p-16f, 0x1.58774ep-18f, 0x1.bc8498p-22f};
  BRRR_VX_TABLE c2 = {-0x1.06b2f6p-19f, -0x1.13499ep-4f,  -0x1.c597b8p-4f,  -0x1.ec98b2p-4f,
                      -0x1.a1e6ccp-4f,  -0x1.24157cp-4f,  -0x1.587988p-5f,  -0x1.5b17d2p-6f,
                      -0x1.2d0e74p-7f,  -0x1.c3b04ep-9f,  -0x1.267c6ep-10f, -0x1.4ede66p-12f,
                      -0x1.4bee06p-14f, -0x1.11792cp-16f, -0x1.1daa58p-18f, -0x1.fb4a88p-20f};
  BRRR_VX_TABLE c1 = {0x1.988454p-2f,  0x1.7ef6b6p-2f,  0x1.3b802ep-2f,  0x1.c8d81ap-3f,
                      0x1.22aba8p-3f,  0x1.450e82p-4f,  0x1.3f74f6p-5f,  0x1.13e7d6p-6f,
                      0x1.a2d38ap-8f,  0x1.175d86p-9f,  0x1.4784cep-11f, 0x1.517054p-13f,
                      0x1.3186cap-15f, 0x1.e636ecp-18f, 0x1.53fea2p-20f, 0x1.a1dec6p-23f};
  BRRR_VX_TABLE c0 = {0x0.000000p+0f, 0x1.1f75c8p-3f, 0x1.0e376ap-2f, 0x1.702c68p-2f,
                      0x1.b2ef22p-2f, 0x1.daf96ap-2f, 0x1.f01b6cp-2f, 0x1.f9ec20p-2f,
                      0x1.fdef1ap-2f, 0x1.ff6076p-2f, 0x1.ffd55cp-2f, 0x1.fff5eap-2f,
                      0x1.fffde4p-2f, 0x1.ffff9cp-2f, 0x1.fffff0p-2f, 0x1.fffffep-2f};
  t = at_most(t, 5.56f);
  f32 k = fma(t, 0x1.641fdep+1f, 0x1.8p+23f), n = k - 0x1.8p+23f;
  f32 u = fma(n, -0x1.700d14p-2f, t);
  i32 at = (i32)k;  // its low bits are n
  f32 p = fma(lookup(c5, at), u, lookup(c4, at));
  p = fma(p, u, lookup(c3, at));
  p = fma(p, u, lookup(c2, at));
  f32 slope = lookup(c1, at), base = lookup(c0, at);
  if constexpr (sizeof...(rest) > 0) base = fma(slope, rest..., base);
  return fma(fma(p, u, slope), u, base);
}
BRRR_VX f32 normal_cdf(f32 x) { return (f32)((i32)above_half(abs(x)) | sign_bits(x)) + 0.5f; }
// 2 Phi(sqrt(2) x) - 1; sqrt(2) is the sum of two floats.
BRRR_VX f32 erf(f32 x) {
  f32 t = at_most(abs(x), 4.0f), y = t * 0x1.6a09e6p+0f;
  f32 r = above_half(y, fma(t, 0x1.9fcef4p-26f, fma(t, 0x1.6a09e6p+0f, -y)));
  return (f32)((i32)(r + r) | sign_bits(x));
}

// --- logarithms and powers -----------------------------------------------------------------------

// log(1 + m) + i * log(2) with -1/3 <= m <= 1/3.
BRRR_VX f32 log1p_reduced(f32 m, f32 i) {
  f32 s = m * m;
  f32 r = fma(splat(-0x1.0ae000p-3f), s, -0x1.f198b2p-4f);
  f32 t = fma(splat(0x1.208000p-3f), s, 0x1.1e5740p-3f);
  r = fma(r, s, -0x1.55b36cp-3f);
  t = fma(t, s, 0x1.99d8b2p-3f);
  r = fma(r, s, -0x1.fffe02p-3f);
  r = fma(t, m, r);
  r = fma(r, m, 0x1.5554fap-2f);
  r = fma(r, m, -0.5f);
  return fma(i, ln2_high, fma(r, s, m));
}
// The logarithm of an argument that is not positive and finite.
BRRR_VX f32 log_special(f32 x) {
  f32 r = where(eq(x, f32{}), splat(-infinity), x);
  return where(lt(x, f32{}), splat(not_a_number), r);
}
// x = m * 2^i with m near 1; `first` holds the bits of the smallest m.
struct Split {
  f32 m, i;
};
BRRR_VX Split split(f32 x, int first) {
  b16 tiny = lt(x, splat(0x1p-126f));
  f32 y = where(tiny, x * 0x1p23f, x);
  // Unsigned: the bits of a non-positive x may wrap around.
  i32 e = (i32)((u32)y - static_cast<unsigned>(first)) & -0x800000;
  f32 i = convert<f32>(e);
  return {(f32)((u32)y - (u32)e), fma(i, 0x1p-23f, where(tiny, splat(-23.0f), f32{}))};
}
BRRR_VX f32 log(f32 x) {
  Split v = split(x, 0x3f2aaaab);
  f32 r = log1p_reduced(v.m - 1.0f, v.i);
  return where(gt(x, f32{}) & lt(x, splat(infinity)), r, log_special(x));
}
// (1 + x) 2^-i - 1 is x 2^-i + (2^-i - 1): the scaling is exact, one rounding is left.
BRRR_VX f32 log1p(f32 x) {
  f32 u = x + 1.0f;
  i32 e = (i32)((u32)u - 0x3f2aaaabu) & -0x800000;
  f32 down = fma((f32)(0x40800000u - (u32)e), 0.25f, -1.0f);
  f32 m = (f32)((u32)x - (u32)e) + down;
  f32 r = log1p_reduced(m, convert<f32>(e) * 0x1p-23f);
  r = where(gt(u, f32{}) & lt(u, splat(infinity)), r, log_special(u));
  return where(eq(x, f32{}), x, r);
}

// |x|^y for finite |x| > 0: the logarithm as a sum of two floats, from 2 atanh((m-1)/(m+1)).
BRRR_VX f32 pow_positive(f32 x, f32 y) {
  Split v = split(x, 0x3f3504f3);
  f32 d = v.m - 1.0f, inv = 1.0f / (v.m + 1.0f);
  f32 q = inv * d, q_low = inv * fma(q, -d, fma(q, -2.0f, d));
  f32 s = q * q;
  f32 r = fma(splat(0x1.08c000p-3f), s, 0x1.22cd9cp-3f);
  r = fma(r, s, 0x1.99a162p-3f);
  r = fma(r, s, 0x1.555550p-2f);
  f32 s_low = fma(q, q_low + q_low, fma(q, q, -s));
  f32 cube = s * q, cube_low = fma(s, q_low, fma(s_low, q, fma(s, q, -cube)));
  f32 tail = fma(r, cube, fma(r, cube_low, q_low));
  f32 twice = q + q, t = fma(v.i, ln2_high, twice), p = fma(v.i, -ln2_high, t);
  tail = fma(v.i, ln2_low, fma(tail, 2.0f, twice - p));
  f32 log_high = t + tail, log_low = (t - log_high) + tail;
  f32 a = log_high * y, c = at_least(at_most(a, 110.0f), -110.0f);
  f32 a_low = where(eq(a, c), fma(log_low, y, fma(log_high, y, -a)), f32{});
  f32 e = c + a_low, e_low = (c - e) + a_low;
  f32 i = nearest_multiple(e, log2e);
  return scale(exp_fraction(exp_remainder(e, i) + e_low), i);
}
BRRR_VX f32 pow(f32 x, f32 y) {
  f32 ax = abs(x), half = y * 0.5f;
  b16 zero = eq(ax, f32{}), whole = eq(trunc(y), y), odd = whole & ne(trunc(half), half);
  f32 r = where(eq(ax, splat(1.0f)), splat(1.0f), pow_positive(ax, y));
  f32 end = where(zero ^ lt(y, f32{}), f32{}, splat(infinity));
  r = where(zero | eq(ax, splat(infinity)), end, r);
  r = (f32)((i32)r | (sign_bits(x) & odd));
  b16 undefined = lt(x, f32{}) & gt(x, splat(-infinity)) & ~whole;
  r = where(undefined, splat(not_a_number), r);
  r = where(isnan(x) | isnan(y), x + y, r);
  return where(eq(x, splat(1.0f)) | eq(y, f32{}), splat(1.0f), r);
}

// --- sine and cosine -----------------------------------------------------------------------------

// pi in three parts, all positive, so that sin(-0) keeps its sign.
constexpr float pi_1 = 0x1.921fb4p+1f, pi_2 = 0x1.4442d0p-23f, pi_3 = 0x1.846988p-47f;
constexpr float trig_fast_limit = 0x1p+17f;

// sin(r) for |r| <= pi / 2, with the sign bits of `flip` added. `near` is r before its last
// correction, exact enough for all but the linear term: the polynomial need not wait for r.
BRRR_VX f32 sin_reduced(f32 near, f32 r, i32 flip) {
  f32 s = near * near;
  f32 p = fma(splat(0x1.5caaeap-19f), s, -0x1.9f652ep-13f);
  p = fma(p, s, 0x1.110eeap-7f);
  p = fma(p, s, -0x1.555550p-3f);
  return (f32)((i32)fma(p, fma(s, near, 0.0f), r) ^ flip);
}

// x - (j + h) pi, `near` before its last correction, and the sign of an odd j.
struct Reduced {
  f32 near, r;
  i32 flip;
};
BRRR_VX f32 sin_reduced(Reduced v) { return sin_reduced(v.near, v.r, v.flip); }
BRRR_VX Reduced reduce_sin(f32 x) {  // sin(x) = (-1)^j sin(x - j pi)
  f32 k = fma(x, 0x1.45f306p-2f, 0x1.8p+23f), j = k - 0x1.8p+23f;
  f32 near = fma(j, -pi_2, fma(j, -pi_1, x));
  return {near, fma(j, -pi_3, near), (i32)k << 31};
}
BRRR_VX Reduced reduce_cos(f32 x) {  // cos(x) = (-1)^j sin((j + 1/2) pi - x)
  f32 k = fma(x, 0x1.45f306p-2f, -0.5f) + 0x1.8p+23f, h = (k - 0x1.8p+23f) + 0.5f;
  f32 near = fma(h, pi_2, fma(h, pi_1, -x));
  return {near, fma(h, pi_3, near), (i32)k << 31};
}

// The same with some huge arguments: the product with the relevant bits of 1/pi, in integers (Payne
// and Hanek). For cosine half a turn of sin is subtracted first. Rare: lane by lane, not inlined.
BRRR_VX_COLD void sin_huge(const f32* x, f32* y, bool cosine) {
  static const unsigned long inv_pi[5] = {0x517cc1b7, 0x27220a94fe13abe8, 0xfa9a6ee06db14acc,
                                          0x9e21c820ff28b1d5, 0};
  Reduced v = cosine ? reduce_cos(*x) : reduce_sin(*x);
  for (int k = 0; k < lanes; ++k) {
    int bits = ((i32)*x)[k], mag = bits & 0x7fffffff;
    if (mag <= 0x48000000) continue;  // trig_fast_limit
    if (mag >= 0x7f800000) {
      v.r[k] = (*x)[k] - (*x)[k];
      v.near[k] = v.r[k];
      continue;
    }
    int at = 31 + (mag >> 23) - 150, word = at >> 6, shift = at & 63;
    unsigned long high = inv_pi[word] << shift | inv_pi[word + 1] >> 1 >> (63 - shift);
    unsigned long low = inv_pi[word + 1] << shift | inv_pi[word + 2] >> 1 >> (63 - shift);
    unsigned long digits = (unsigned long)((mag & 0x7fffff) | 0x800000);
    // |x| / pi modulo 2, 63 binary places.
    unsigned long turns = high * digits + ((low >> 32) * digits >> 32);
    if (cosine) turns -= 1ul << 62;
    double t = (double)(long)(turns << 1) * 0x1.921fb54442d18p-63;
    v.r[k] = (float)(cosine || bits < 0 ? -t : t);
    v.near[k] = v.r[k];
    v.flip[k] = (int)((turns + (1ul << 62)) >> 63 << 31);
  }
  *y = sin_reduced(v);
}

// Branch-free for all but huge arguments: a cheap path for arguments below pi, taken by two vectors
// in five of x * w + b with normal numbers, cost more than it saved.
template <bool cosine> BRRR_VX f32 wave(f32 x) {
  const Parts<f32> kept = x;
  Parts<f32> y = sin_reduced(cosine ? reduce_cos(x) : reduce_sin(x));
  if (__builtin_expect(any_above(x, trig_fast_limit), 0)) {
    f32 from = kept.get(), to;
    sin_huge(&from, &to, cosine);
    y = to;
  }
  return y.get();
}
BRRR_VX f32 sin(f32 x) { return wave<false>(x); }
BRRR_VX f32 cos(f32 x) { return wave<true>(x); }

// The same results for |x| <= 1, where j is 0, or cos(x) = cos(-x) makes it 0, and pi_3 is too
// small to matter. Generated code calls them on the results of bounded functions.
BRRR_VX f32 unit_sin(f32 x) { return sin_reduced(x, x, i32{}); }
BRRR_VX f32 unit_cos(f32 x) {
  f32 r = (0.5f * pi_1 - abs(x)) + 0.5f * pi_2;
  return sin_reduced(r, r, i32{});
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_MATH_H
