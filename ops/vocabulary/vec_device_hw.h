// The device prelude, part 2: what the GPU itself does, such as fma and rounding (compare
// vec_hw.h).
#ifndef BRRR_OPS_VEC_DEVICE_HW_H
#define BRRR_OPS_VEC_DEVICE_HW_H

#include "ops/vocabulary/vec_device.h"

// A table of sixteen floats, for lookup(): in global memory, because threads read it at different
// places, for which constant memory is slow. One line of the cache holds it.
#define BRRR_VX_TABLE static const Table
// A function that is hardly ever called, so out of line.
#define BRRR_VX_COLD __device__ static __attribute__((noinline, unused))
// A function of the C library. The names of CUDA's built-in functions are those of C.
#ifdef BRRR_EMULATED
#define BRRR_VX_LIBM(name) __builtin_##name
#else
#define BRRR_VX_LIBM(name) ::name
#endif

namespace brrr::vx {

constexpr float infinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float not_a_number = __builtin_bit_cast(float, 0x7fc00000);

template <class To, class From> BRRR_VX To convert(From x) {
  return To(static_cast<decltype(To::v)>(x.v));
}

BRRR_VX i32 widen(u8 x) { return convert<i32>(x); }
BRRR_VX u32 widen(u16 x) { return convert<u32>(x); }
BRRR_VX u8 low_bytes(i32 x) { return convert<u8>(x & 255); }

#ifndef BRRR_EMULATED
// 16-bit floats, rounded to nearest even; a NaN loses its bits.
#define BRRR_VX_CONVERT(name, To, to, From, from, instruction) \
  BRRR_VX To name(From x) {                                    \
    To y;                                                      \
    asm(instruction " %0, %1;" : "=" to(y.v) : from(x.v));     \
    return y;                                                  \
  }
#define BRRR_VX_BFLOAT
BRRR_VX_CONVERT(f32_to_bfloat, u16, "h", f32, "f", "cvt.rn.bf16.f32")
#define BRRR_VX_HALF
BRRR_VX_CONVERT(f32_to_half, u16, "h", f32, "f", "cvt.rn.f16.f32")
BRRR_VX_CONVERT(half_to_f32, f32, "f", u16, "h", "cvt.f32.f16")
#undef BRRR_VX_CONVERT
#endif

struct alignas(64) Table {
  float v[16];
};
BRRR_VX f32 lookup(const Table& table, i32 k) { return f32(table.v[k.v & 15]); }

// Correctly rounded a * b + c: the only contraction there is, so never left to the compiler.
BRRR_VX f32 fma(f32 a, f32 b, f32 c) { return f32(BRRR_VX_LIBM(fmaf)(a.v, b.v, c.v)); }
BRRR_VX f64 fma(f64 a, f64 b, f64 c) { return f64(BRRR_VX_LIBM(fma)(a.v, b.v, c.v)); }
BRRR_VX f32 sqrt(f32 x) { return f32(BRRR_VX_LIBM(sqrtf)(x.v)); }

// Rounds to integers: to nearest even, down, up, towards zero.
enum class Round { even, down, up, zero };
template <Round mode> BRRR_VX f32 to_integral(f32 x) {
  if constexpr (mode == Round::even) return f32(BRRR_VX_LIBM(nearbyintf)(x.v));
  if constexpr (mode == Round::down) return f32(BRRR_VX_LIBM(floorf)(x.v));
  if constexpr (mode == Round::up) return f32(BRRR_VX_LIBM(ceilf)(x.v));
  if constexpr (mode == Round::zero) return f32(BRRR_VX_LIBM(truncf)(x.v));
}

// These keep NaN, unlike a chain of min and max.
BRRR_VX f32 at_most(f32 x, float top) { return f32(x.v > top ? top : x.v); }
BRRR_VX f32 at_least(f32 x, float low) { return f32(x.v < low ? low : x.v); }

// p * 2^i for integral |i| <= 160, rounded once: a result may be denormal or overflow. A sum has i
// in its low bits, and shifts leave no others: conversions have an eighth of the additions' speed.
BRRR_VX f32 scale(f32 p, f32 i) {
  i32 n = (i32)(i + 0x1.8p+23f), half = n >> 1;
  return p * (f32)((half << 23) + 0x3f800000) * (f32)(((n - half) << 23) + 0x3f800000);
}
// The same for i <= 60.
BRRR_VX f32 scale_down(f32 p, f32 i) {
  return p * (f32)(((i32)(i + 0x1.8p+23f) << 23) + 0x5f800000) * 0x1p-64f;
}

// n / d as sigmoid and tanh need it: n is 2, 1, or e <= 1 where d is 1 + e. Division for all
// operands takes three times the instructions, most of them to tell which operands it has. Of the
// 461 million pairs that there are all have the same bits whatever unit in the last place the
// reciprocal is off by, but for 31 whose d has a mantissa of ones; these if it is not off.
BRRR_VX f32 quotient(f32 n, f32 d) {
#ifdef BRRR_EMULATED
  return n / d;
#else
  float rough;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(rough) : "f"(d.v));
  f32 r(rough);
  r = fma(fma(-d, r, f32(1.0f)), r, r);
  const f32 q = n * r;
  return fma(fma(-d, q, n), r, q);
#endif
}

BRRR_VX bool any_above(f32 x, float limit) { return BRRR_VX_LIBM(fabsf)(x.v) > limit; }

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_DEVICE_HW_H
