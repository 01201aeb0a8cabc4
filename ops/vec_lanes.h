// The CPU vector prelude, part 4: float64 through libm, division with Python's signs, Philox.
// Embedded after vec_trig.h.
#ifndef BRRR_OPS_VEC_LANES_H
#define BRRR_OPS_VEC_LANES_H

#include "ops/vec_trig.h"

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
BRRR_VX_LANES(sqrt, __builtin_sqrt(x))
BRRR_VX_LANES(floor, __builtin_floor(x))
BRRR_VX_LANES(ceil, __builtin_ceil(x))
BRRR_VX_LANES(trunc, __builtin_trunc(x))
BRRR_VX_LANES(round, __builtin_nearbyint(x))
BRRR_VX_LANES(exp, __builtin_exp(x))
BRRR_VX_LANES(expm1, __builtin_expm1(x))
BRRR_VX_LANES(log, __builtin_log(x))
BRRR_VX_LANES(log1p, __builtin_log1p(x))
BRRR_VX_LANES(sin, __builtin_sin(x))
BRRR_VX_LANES(cos, __builtin_cos(x))
BRRR_VX_LANES(unit_sin, __builtin_sin(x))
BRRR_VX_LANES(unit_cos, __builtin_cos(x))
BRRR_VX_LANES(tanh, __builtin_tanh(x))
BRRR_VX_LANES(erf, __builtin_erf(x))
#undef BRRR_VX_LANES

// Integers are whole already.
#define BRRR_VX_WHOLE(name) \
  BRRR_VX i32 name(i32 x) { \
    return x;               \
  }                         \
  BRRR_VX i64 name(i64 x) { \
    return x;               \
  }
BRRR_VX_WHOLE(floor)
BRRR_VX_WHOLE(ceil)
BRRR_VX_WHOLE(trunc)
BRRR_VX_WHOLE(round)
#undef BRRR_VX_WHOLE

BRRR_VX f64 rsqrt(f64 x) {
  return 1.0 / sqrt(x);
}
BRRR_VX f64 sigmoid(f64 x) {
  f64 e = exp(-abs(x));
  return where(lt(x, f64{}), e, splat(1.0)) / (1.0 + e);
}
BRRR_VX f64 pow(f64 x, f64 y) {
  for (int i = 0; i < lanes; ++i) x[i] = __builtin_pow(x[i], y[i]);
  return x;
}

// --- division ------------------------------------------------------------------------------------

// floor(a / b) and what it leaves, with the sign of b as in Python and torch.remainder. Integers:
// division by zero gives 0 for both, and the smallest number over -1 wraps; neither may trap.
template <class T> BRRR_VX T divide_lane(T a, T b, bool want_remainder) {
  using U = decltype(sizeof(0));
  if (b == 0) return 0;
  if (b == -1) return want_remainder ? T(0) : T(U(0) - U(a));
  T q = a / b, r = a % b;
  bool below = r != 0 && (r < 0) != (b < 0);
  return want_remainder ? (below ? r + b : r) : (below ? q - 1 : q);
}
#define BRRR_VX_DIVIDE(V)                                                  \
  BRRR_VX V floor_div(V a, V b) {                                          \
    for (int i = 0; i < lanes; ++i) a[i] = divide_lane(a[i], b[i], false); \
    return a;                                                              \
  }                                                                        \
  BRRR_VX V remainder(V a, V b) {                                          \
    for (int i = 0; i < lanes; ++i) a[i] = divide_lane(a[i], b[i], true);  \
    return a;                                                              \
  }
BRRR_VX_DIVIDE(i32)
BRRR_VX_DIVIDE(i64)
#undef BRRR_VX_DIVIDE

__attribute__((noinline, cold, unused)) static void fmod_lanes(f32* a, const f32* b) {
  for (int i = 0; i < lanes; ++i) (*a)[i] = __builtin_fmodf((*a)[i], (*b)[i]);
}

// C's fmod, exactly. While the quotient is below 2^23 one fma leaves an exact remainder, at most
// one divisor off where the quotient was rounded up.
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
BRRR_VX f64 fmod(f64 a, f64 b) {
  for (int i = 0; i < lanes; ++i) a[i] = __builtin_fmod(a[i], b[i]);
  return a;
}

#define BRRR_VX_DIVIDE(V, one, half)                                                  \
  BRRR_VX V remainder(V a, V b) {                                                     \
    V r = fmod(a, b);                                                                 \
    return where(ne(r, V{}) & (lt(r, V{}) ^ lt(b, V{})), r + b, r);                   \
  }                                                                                   \
  /* From the exact remainder, so that floor_div(a, b) * b + remainder(a, b) is a. */ \
  BRRR_VX V floor_div(V a, V b) {                                                     \
    V r = fmod(a, b), q = (a - r) / b;                                                \
    q = where(ne(r, V{}) & (lt(r, V{}) ^ lt(b, V{})), q - one, q);                    \
    V f = floor(q);                                                                   \
    f = where(gt(q - f, splat(half)), f + one, f);                                    \
    return where(eq(b, V{}), a / b, where(eq(q, V{}), q, f));                         \
  }
BRRR_VX_DIVIDE(f32, 1.0f, 0.5f)
BRRR_VX_DIVIDE(f64, 1.0, 0.5)
#undef BRRR_VX_DIVIDE

// --- random numbers ------------------------------------------------------------------------------

// One register of 32-bit words, seen also as 64-bit pairs.
typedef Part<unsigned>::type words;
typedef Part<unsigned long>::type pairs;

BRRR_VX words reverse_fours(words p) {
#if BRRR_VX_BYTES == 64
  return __builtin_shufflevector(p, p, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
#elif BRRR_VX_BYTES == 32
  return __builtin_shufflevector(p, p, 3, 2, 1, 0, 7, 6, 5, 4);
#else
  return __builtin_shufflevector(p, p, 3, 2, 1, 0);
#endif
}

// The 64-bit products of the even words. g++ does not find the instruction by itself.
BRRR_VX words multiply_even(words a, words b) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef long long i64x8 __attribute__((vector_size(64)));
  return (words)__builtin_ia32_pmuludq512_mask((i32)a, (i32)b, i64x8{},
                                               static_cast<unsigned char>(-1));
#elif defined(__AVX2__) && !defined(__clang__)
  return (words)__builtin_ia32_pmuludq256((i32x8)a, (i32x8)b);
#else
  return (words)(((pairs)a & 0xffffffffUL) * ((pairs)b & 0xffffffffUL));
#endif
}

// Philox4x32-10 (Salmon et al., SC 2011): element k of a draw is word k % 4 of the block whose
// counter is {k / 4, offset}, under the key `seed`. Gives elements index .. index + 15, where
// index is a multiple of 16. Four blocks fill the vector, a counter's words side by side.
BRRR_VX u32 philox16(unsigned long index, unsigned long seed, unsigned long offset) {
  unsigned long block = index / 4;
  unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32);
  unsigned c2 = (unsigned)offset, c3 = (unsigned)(offset >> 32);
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
  const unsigned m0 = 0xd2511f53u, m1 = 0xcd9e8d57u, w0 = 0x9e3779b9u, w1 = 0xbb67ae85u;
  u32 x = {c0, c1, c2, c3, c0 + 1, c1, c2, c3, c0 + 2, c1, c2, c3, c0 + 3, c1, c2, c3};
  const u32 m = {m0, 0, m1, 0, m0, 0, m1, 0, m0, 0, m1, 0, m0, 0, m1, 0};
  const u32 w = {w0, 0, w1, 0, w0, 0, w1, 0, w0, 0, w1, 0, w0, 0, w1, 0};
  u32 key = {k0, 0, k1, 0, k0, 0, k1, 0, k0, 0, k1, 0, k0, 0, k1, 0};
  constexpr int parts = sizeof x / sizeof(words);
  words part[parts], factor, step;
  __builtin_memcpy(&part, &x, sizeof x);
  __builtin_memcpy(&factor, &m, sizeof factor);
  __builtin_memcpy(&step, &w, sizeof step);
  for (int i = 0; i < parts; ++i) {
    words round_key;
    __builtin_memcpy(&round_key, &key, sizeof round_key);
    for (int round = 0; round < 10; ++round) {  // a product is {low 0, high 0, low 1, high 1}
      words product = multiply_even(part[i], factor);
      part[i] = reverse_fours(product) ^ (words)((pairs)part[i] >> 32) ^ round_key;
      round_key += step;
    }
  }
  __builtin_memcpy(&x, &part, sizeof x);
  return x;
}

// Uniform in [0, 1): 24 bits, each value exact.
BRRR_VX f32 uniform01(u32 bits) {
  return to_f32((i32)(bits >> 8)) * 0x1p-24f;
}

// Standard normals by Box and Muller: a pair of words makes a pair of values, the cosine at the
// even element. The angle is reduced in turns, where that is exact: sin(pi t) with |t| <= 1/2.
BRRR_VX f32 normal16(unsigned long index, unsigned long seed, unsigned long offset) {
  f32 u = uniform01(philox16(index, seed, offset));
  f32 u1 = __builtin_shufflevector(u, u, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
  f32 u2 = __builtin_shufflevector(u, u, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  const f32 quarter = {.5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0};
  f32 half_turns = fma(u2, 2.0f, quarter);
  f32 k = half_turns + 0x1.8p+23f, t = half_turns - (k - 0x1.8p+23f);
  f32 radius = sqrt(log(1.0f - u1) * -2.0f);
  f32 r = t * 0x1.921fb6p+1f;
  return radius * sin_reduced(r, r, (i32)k << 31);
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_LANES_H
