// The vector prelude, part 5, portable: sine and cosine of float32.
#ifndef BRRR_OPS_VEC_TRIG_H
#define BRRR_OPS_VEC_TRIG_H

#include "ops/vocabulary/vec_math.h"

namespace brrr::vx {

// pi in three parts, all positive, so that sin(-0) keeps its sign.
constexpr float pi_1 = 0x1.921fb4p+1f, pi_2 = 0x1.4442d0p-23f, pi_3 = 0x1.846988p-47f;
constexpr float trig_fast_limit = 0x1p+17f;

// sin(r) for |r| <= pi / 2, with the sign bits of `flip` added. `near` is r before its last
// correction, and good enough for all but the linear term: the polynomial need not wait for r.
BRRR_VX f32 sin_reduced(f32 near, f32 r, i32 flip) {
  f32 s = near * near;
  f32 p = fma(splat(0x1.5caaeap-19f), s, -0x1.9f652ep-13f);
  p = fma(p, s, 0x1.110eeap-7f);
  p = fma(p, s, -0x1.555550p-3f);
  return (f32)((i32)fma(p, fma(s, near, 0.0f), r) ^ flip);
}

// x - (j + h) pi, `near` before its last correction, and the sign that an odd j gives.
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

// The same where some arguments are huge: the product with the bits of 1/pi that matter, in
// integers (Payne and Hanek). For cosine half a turn of sin is taken off first. Rare, so lane by
// lane and out of line.
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

// For all arguments but huge ones without a branch: one that two vectors in five take, as of
// x * w + b of normal numbers when only those below pi were cheap, costs more than it saves.
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

// The same results for |x| <= 1, where j is 0 or cos(x) = cos(-x) makes it so, and pi_3 is too
// small to count. Generated code calls them where the argument is the result of a bounded function.
BRRR_VX f32 unit_sin(f32 x) { return sin_reduced(x, x, i32{}); }
BRRR_VX f32 unit_cos(f32 x) {
  f32 r = (0.5f * pi_1 - abs(x)) + 0.5f * pi_2;
  return sin_reduced(r, r, i32{});
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_TRIG_H
