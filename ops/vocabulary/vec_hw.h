// The CPU vector prelude, part 2: what the hardware does itself, such as fma and rounding. The
// parts after it, vec_convert.h to vec_lanes.h, are portable: with vec_device.h in place of parts 1
// and 2 they are the prelude of GPU kernels, and give the same bits.
#ifndef BRRR_OPS_VEC_HW_H
#define BRRR_OPS_VEC_HW_H

#include "ops/vocabulary/vec.h"

// A table of sixteen floats, for lookup().
#define BRRR_VX_TABLE const f32
// An out-of-line function that is hardly ever called.
#define BRRR_VX_COLD __attribute__((noinline, cold, unused)) static
// A function of the C library.
#define BRRR_VX_LIBM(name) __builtin_##name

namespace brrr::vx {

constexpr float infinity = __builtin_inff(), not_a_number = __builtin_nanf("");

// As a C cast of every lane.
template <class To, class From> BRRR_VX To convert(From x) {
  return __builtin_convertvector(x, To);
}

// Bytes and 16-bit words as integers, and the low bytes of integers. g++ 12 splits a conversion
// that changes the width more than twofold lane by lane, but not the same conversion in steps.
BRRR_VX i32 u8_to_i32(u8 x) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef char bytes __attribute__((vector_size(16)));
  return __builtin_ia32_pmovzxbd512_mask((bytes)x, i32{}, static_cast<unsigned short>(-1));
#else
  return convert<i32>(convert<u16>(x));
#endif
}
BRRR_VX u32 widen(u16 x) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef short words __attribute__((vector_size(32)));
  return (u32)__builtin_ia32_pmovzxwd512_mask((words)x, i32{}, static_cast<unsigned short>(-1));
#else
  return convert<u32>(x);
#endif
}
BRRR_VX u8 i32_to_u8(i32 x) {
#if defined(__AVX512F__)
  return convert<u8>(x & 255);
#else
  return convert<u8>(convert<u16>(x & 255));
#endif
}

// IEEE half to float and back, to nearest even. Denormals are exact, whatever the process's
// denormal mode.
#ifdef __F16C__
#define BRRR_VX_HALF
BRRR_VX f32 f16_to_f32(u16 h) {
#ifdef __AVX512F__
  typedef short words __attribute__((vector_size(32)));
  return __builtin_ia32_vcvtph2ps512_mask((words)h, f32{}, static_cast<unsigned short>(-1), 4);
#else
  typedef short words __attribute__((vector_size(16)));
  words w[2];
  __builtin_memcpy(&w, &h, sizeof h);
  const f32x8 r[2] = {__builtin_ia32_vcvtph2ps256(w[0]), __builtin_ia32_vcvtph2ps256(w[1])};
  f32 all;
  __builtin_memcpy(&all, &r, sizeof all);
  return all;
#endif
}
BRRR_VX u16 f32_to_f16(f32 x) {
#ifdef __AVX512F__
  typedef short words __attribute__((vector_size(32)));
  return (u16)__builtin_ia32_vcvtps2ph512_mask(x, 0, (words)u16{}, static_cast<unsigned short>(-1));
#else
  typedef short words __attribute__((vector_size(16)));
  const words w[2] = {__builtin_ia32_vcvtps2ph256(half<0>(x), 0),
                      __builtin_ia32_vcvtps2ph256(half<1>(x), 0)};
  u16 all;
  __builtin_memcpy(&all, &w, sizeof all);
  return all;
#endif
}
#endif

// Lane i is table[k[i] mod 16].
BRRR_VX f32 lookup(f32 table, i32 k) {
#if defined(__AVX512F__) && defined(__clang__)
  return __builtin_ia32_permvarsf512(table, k);
#elif defined(__AVX512F__)
  return __builtin_ia32_permvarsf512_mask(table, k, table, static_cast<unsigned short>(-1));
#elif defined(__AVX2__)
  const f32x8 low = half<0>(table), high = half<1>(table);
  const auto of = [=](f32x8 at, f32x8 bit_3) {
    return __builtin_ia32_blendvps256(__builtin_ia32_permvarsf256(low, (i32x8)at),
                                      __builtin_ia32_permvarsf256(high, (i32x8)at), bit_3);
  };
  return by_halves(of, k, k << 28);  // Bit 3 as the sign, the only bit that a blend reads.
#else
  f32 r;
  for (int i = 0; i < lanes; ++i) r[i] = table[k[i] & 15];
  return r;
#endif
}

// Correctly rounded a * b + c: the only contraction, always explicit, never by -ffp-contract.
BRRR_VX f32 fma(f32 a, f32 b, f32 c) {
#if defined(__AVX512F__)
  return __builtin_ia32_vfmaddps512_mask(a, b, c, static_cast<unsigned short>(-1), 4);
#elif BRRR_VX_BYTES == 32 && defined(__FMA__)
  return by_halves([](f32x8 x, f32x8 y, f32x8 z) { return __builtin_ia32_vfmaddps256(x, y, z); }, a,
                   b, c);
#else
  for (int i = 0; i < lanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}
BRRR_VX f64 fma(f64 a, f64 b, f64 c) {
  for (int i = 0; i < lanes; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
  return c;
}

BRRR_VX f32 sqrt(f32 x) {
#if defined(__AVX512F__) && defined(__clang__)
  return __builtin_ia32_sqrtps512(x, 4);
#elif defined(__AVX512F__)
  return __builtin_ia32_sqrtps512_mask(x, x, static_cast<unsigned short>(-1), 4);
#elif defined(__AVX2__)
  return by_halves([](f32x8 h) { return __builtin_ia32_sqrtps256(h); }, x);
#else
  for (int i = 0; i < lanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Rounds to integers: to nearest even, down, up, towards zero. The values are the hardware's.
enum class Round { even = 8, down = 9, up = 10, zero = 11 };
template <Round mode> BRRR_VX f32 to_integral(f32 x) {
#if defined(__AVX512F__)
  return __builtin_ia32_rndscaleps_mask(x, static_cast<int>(mode), x,
                                        static_cast<unsigned short>(-1), 4);
#elif defined(__AVX2__)
  return by_halves([](f32x8 h) { return __builtin_ia32_roundps256(h, static_cast<int>(mode)); }, x);
#else
  for (int i = 0; i < lanes; ++i)
    x[i] = mode == Round::even   ? __builtin_nearbyintf(x[i])
           : mode == Round::down ? __builtin_floorf(x[i])
           : mode == Round::up   ? __builtin_ceilf(x[i])
                                 : __builtin_truncf(x[i]);
  return x;
#endif
}

// a < b ? a : b, and a > b ? a : b; one instruction each, which g++ does not generate itself.
BRRR_VX f32 lesser(f32 a, f32 b) {
#if defined(__AVX512F__) && defined(__clang__)
  return __builtin_ia32_minps512(a, b, 4);
#elif defined(__AVX512F__)
  return __builtin_ia32_minps512_mask(a, b, b, static_cast<unsigned short>(-1), 4);
#elif defined(__AVX2__)
  return by_halves([](f32x8 x, f32x8 y) { return __builtin_ia32_minps256(x, y); }, a, b);
#else
  return where(lt(a, b), a, b);
#endif
}
BRRR_VX f32 greater(f32 a, f32 b) {
#if defined(__AVX512F__) && defined(__clang__)
  return __builtin_ia32_maxps512(a, b, 4);
#elif defined(__AVX512F__)
  return __builtin_ia32_maxps512_mask(a, b, b, static_cast<unsigned short>(-1), 4);
#elif defined(__AVX2__)
  return by_halves([](f32x8 x, f32x8 y) { return __builtin_ia32_maxps256(x, y); }, a, b);
#else
  return where(gt(a, b), a, b);
#endif
}

// For 8-byte lanes, without a mask: masks have 4-byte lanes.
#define BRRR_VX_CHOICE(Choice, name, holds)                               \
  struct Choice {                                                         \
    template <class V> BRRR_VX V test(V x, V y) { return holds ? x : y; } \
  };                                                                      \
  BRRR_VX f64 name(f64 a, f64 b) { return by_parts<Choice>(a, b); }       \
  BRRR_VX i64 name(i64 a, i64 b) { return by_parts<Choice>(a, b); }
BRRR_VX_CHOICE(Lesser, lesser, x < y)
BRRR_VX_CHOICE(Greater, greater, x > y)
BRRR_VX_CHOICE(NanOr, nan_or, x != x)
#undef BRRR_VX_CHOICE

// NaN passes through.
BRRR_VX f32 at_most(f32 x, float top) { return lesser(splat(top), x); }
BRRR_VX f32 at_least(f32 x, float low) { return greater(splat(low), x); }

// p * 2^i for integral -254 <= i <= 160, rounded once, except results that become zero (i < -150);
// a result may be denormal or overflow.
BRRR_VX f32 scale(f32 p, f32 i) {
#if defined(__AVX512F__)
  return __builtin_ia32_scalefps512_mask(p, i, p, static_cast<unsigned short>(-1), 4);
#else
  i32 n = convert<i32>(i), half = n >> 1;
  return p * (f32)((half + 127) << 23) * (f32)((n - half + 127) << 23);
#endif
}

// The same for -191 <= i <= 60.
BRRR_VX f32 scale_down(f32 p, f32 i) {
#if defined(__AVX512F__)
  return scale(p, i);
#else
  return p * (f32)(((i32)(i + 0x1.8p+23f) << 23) + 0x5f800000) * 0x1p-64f;
#endif
}

// For exponentials that are zero, x < -104. An underflowing product takes some processors a hundred
// cycles, and a mask's -infinity makes many: there are none here, except without AVX-512 down to x
// = -175 (falling_exp: -132). exp() computes with exp_operand(), and exp_result() gives p * 2^i;
// falling_exp() uses the other two.
#if defined(__AVX512F__)
BRRR_VX f32 exp_operand(f32 x) { return x; }
BRRR_VX f32 exp_result(f32 x, f32 p, f32 i) {
  constexpr int not_less = 21;  // True for NaN.
  return __builtin_ia32_scalefps512_mask(
      p, i, f32{}, __builtin_ia32_cmpps512_mask(x, splat(-104.0f), not_less, 0xffff, 4), 4);
}
BRRR_VX f32 falling_operand(f32 x) { return x; }
BRRR_VX f32 falling_result(f32 x, f32 p, f32 i) { return exp_result(x, p, i); }
#else
BRRR_VX f32 exp_operand(f32 x) { return at_least(x, -176.0f); }  // i = -254: its factors are 0.
BRRR_VX f32 exp_result(f32, f32 p, f32 i) { return scale(p, i); }
BRRR_VX f32 falling_operand(f32 x) { return at_least(x, -132.4f); }  // i = -191: the same.
BRRR_VX f32 falling_result(f32, f32 p, f32 i) { return scale_down(p, i); }
#endif

// n / d as sigmoid and tanh need it.
BRRR_VX f32 quotient(f32 n, f32 d) { return n / d; }

// Whether any |x| exceeds the limit. Compares straight into a mask register where there is one,
// because every call of sin and cos pays for this.
BRRR_VX bool any_above(f32 x, float limit) {
  f32 size = (f32)((i32)x & 0x7fffffff);
#ifdef __AVX512F__
  return __builtin_ia32_cmpps512_mask(size, splat(limit), 14, static_cast<unsigned short>(-1), 4) !=
         0;
#else
  return any(gt(size, splat(limit)));
#endif
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_HW_H
