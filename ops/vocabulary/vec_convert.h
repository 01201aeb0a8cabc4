// The vector prelude, part 3, portable: conversions between element types.
#ifndef BRRR_OPS_VEC_CONVERT_H
#define BRRR_OPS_VEC_CONVERT_H

#include "ops/vocabulary/vec_hw.h"

namespace brrr::vx {

template <class V> BRRR_VX f32 to_f32(V x) { return convert<f32>(x); }
template <class V> BRRR_VX f64 to_f64(V x) { return convert<f64>(x); }
template <class V> BRRR_VX i32 to_i32(V x) { return convert<i32>(x); }
template <class V> BRRR_VX i64 to_i64(V x) { return convert<i64>(x); }

// Tests the bits: for x != x g++ analyses all that x is computed from, 40 ms in a long kernel.
BRRR_VX b16 isnan(f32 x) { return gt((i32)x & 0x7fffffff, splat(0x7f800000)); }

// Floating point truncates; NaN and out-of-range values give the smallest integer, as the x86
// instructions do (in C++ they are undefined, so those lanes are replaced first).
BRRR_VX i32 to_i32(f32 x) {
  b16 ok = lt((f32)((i32)x & 0x7fffffff), splat(0x1p31f));
  i32 r = convert<i32>(where(ok, x, f32{}));
  return where(ok, r, splat(-0x7fffffff - 1));
}
BRRR_VX i32 to_i32(f64 x) {
  b16 ok = lt(x, splat(0x1p31)) & gt(x, splat(-0x1.00000002p31));
  i32 r = convert<i32>(where(ok, x, f64{}));
  return where(ok, r, splat(-0x7fffffff - 1));
}
BRRR_VX i64 to_i64(f64 x) {
  b16 ok = lt(x, splat(0x1p63)) & ge(x, splat(-0x1p63));
  i64 r = convert<i64>(where(ok, x, f64{}));
  return where(ok, r, splat(-0x7fffffffffffffffL - 1));
}
BRRR_VX i64 to_i64(f32 x) { return to_i64(to_f64(x)); }

// Named, because a mask and an i32 are one type: nonzero -> true, and true -> 1.
template <class V> BRRR_VX b16 to_b16(V x) { return ne(x, V{}); }
BRRR_VX f32 mask_to_f32(b16 m) { return (f32)(m & 0x3f800000); }
BRRR_VX f64 mask_to_f64(b16 m) { return to_f64(m & 1); }
BRRR_VX i32 mask_to_i32(b16 m) { return m & 1; }
BRRR_VX i64 mask_to_i64(b16 m) { return to_i64(m & 1); }

// A stored bool is 0 or 1 (any nonzero byte reads as true).
BRRR_VX b16 bool_to_b16(u8 x) { return to_b16(u8_to_i32(x)); }
BRRR_VX u8 b16_to_bool(b16 m) { return i32_to_u8(m & 1); }

// bfloat16: the upper half of a float. Rounds to nearest even; a NaN stays one (made quiet).
BRRR_VX f32 bf16_to_f32(u16 h) { return (f32)(widen(h) << 16); }
#ifdef BRRR_VX_BFLOAT
BRRR_VX f32 round_bf16(f32 x) { return bf16_to_f32(f32_to_bf16(x)); }
#else
BRRR_VX u32 bf16_bits(f32 x) {
  u32 b = (u32)x;
  u32 rounded = b + 0x7fffu + ((b >> 16) & 1u);
  return (u32)where(isnan(x), (i32)(b | 0x400000u), (i32)rounded);
}
BRRR_VX u16 f32_to_bf16(f32 x) { return convert<u16>(bf16_bits(x) >> 16); }
BRRR_VX f32 round_bf16(f32 x) { return (f32)(bf16_bits(x) & 0xffff0000u); }
#endif

// IEEE half, to nearest even with denormals (after F. Giesen, "half to float done quick"): a
// denormal results from one float addition that puts its last bit at the bottom of the sum.
#ifdef BRRR_VX_HALF
BRRR_VX f32 round_f16(f32 x) { return f16_to_f32(f32_to_f16(x)); }
#else
BRRR_VX u32 f16_bits(f32 x) {
  u32 b = (u32)x, mag = b & 0x7fffffffu;
  u32 normal = (mag + 0xc8000fffu + ((mag >> 13) & 1u)) >> 13;
  u32 tiny = (u32)((f32)mag + 0.5f) - 0x3f000000u;
  u32 nan = (0x7e00u | (mag >> 13)) & 0x7fffu;
  i32 m = (i32)mag;
  i32 r = where(lt(m, splat(0x38800000)), (i32)tiny, (i32)normal);
  r = where(ge(m, splat(0x47800000)), splat(0x7c00), r);
  r = where(gt(m, splat(0x7f800000)), (i32)nan, r);
  return (u32)r | ((b >> 16) & 0x8000u);
}
BRRR_VX f32 f16_value(u32 h) {
  u32 o = (h & 0x7fffu) << 13, exponent = o & 0x0f800000u;
  u32 shifted = o + 0x38000000u;
  f32 tiny = (f32)(shifted + 0x00800000u) - 0x1p-14f;
  i32 r = where(eq((i32)exponent, i32{}), (i32)tiny, (i32)shifted);
  r = where(eq((i32)exponent, splat(0x0f800000)), (i32)(o + 0x70000000u), r);
  return (f32)((u32)r | ((h & 0x8000u) << 16));
}
BRRR_VX f32 f16_to_f32(u16 h) { return f16_value(widen(h)); }
BRRR_VX u16 f32_to_f16(f32 x) { return convert<u16>(f16_bits(x)); }
BRRR_VX f32 round_f16(f32 x) { return f16_value(f16_bits(x)); }
#endif

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_CONVERT_H
