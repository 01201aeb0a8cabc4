#include "ops/vocabulary/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "ops/vocabulary/vec_convert.h"

namespace brrr {

namespace {

// Tags for storage types that share a C++ type; of a bool in memory any byte but 0 is true.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};

// f(an element of dtype t). Inlined, as its lambdas are: calls took half the time of one element.
template <class F> [[gnu::always_inline]] inline void with_element(DType t, F f) {
  if (t == kFloat32) return f(float{});
  if (t == kFloat64) return f(double{});
  if (t == kBFloat16) return f(BF16{});
  if (t == kFloat16) return f(F16{});
  if (t == kInt64) return f(int64_t{});
  if (t == kInt32) return f(int32_t{});
  t == kUInt8 ? f(uint8_t{}) : f(Bool{});
}

// Out-of-range and NaN float-to-integer conversions give the smallest integer, as x86 does; the
// cast itself would be undefined.
template <class To, class From> To to_integer(From x) {
  constexpr From limit = static_cast<From>(sizeof(To) == 8 ? 0x1p63 : 0x1p31);
  if (x >= -limit && x < limit) return static_cast<To>(x);
  return sizeof(To) == 8 ? static_cast<To>(INT64_MIN) : static_cast<To>(INT32_MIN);
}

uint16_t float_to_bfloat16(float x) {
  const auto b = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>((b >> 16) | 0x40);
  return static_cast<uint16_t>((b + 0x7fffu + (b >> 16 & 1)) >> 16);
}
// Half is defined once, on vectors; a single value is one lane. (Inlined into loops over single
// values with AVX2, these crash g++ 12 with an internal error.)
[[gnu::noinline]] float float16_to_float(uint16_t h) { return vx::f16_to_f32(vx::splat(h))[0]; }
[[gnu::noinline]] uint16_t float_to_float16(float x) { return vx::f32_to_f16(vx::splat(x))[0]; }

template <class To, class From> To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, BF16>) {
    return convert<To>(std::bit_cast<float>(uint32_t{x.bits} << 16));
  } else if constexpr (std::is_same_v<From, F16>) {
    return convert<To>(float16_to_float(x.bits));
  } else if constexpr (std::is_same_v<From, Bool>) {
    return convert<To>(int32_t{x.byte != 0});
  } else if constexpr (std::is_same_v<To, BF16>) {
    return {float_to_bfloat16(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<To, F16>) {
    return {float_to_float16(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {x != From{}};
  } else if constexpr (std::is_same_v<To, uint8_t> && std::is_floating_point_v<From>) {
    return static_cast<uint8_t>(to_integer<int64_t>(x));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return to_integer<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// Sixteen elements in the vector type that holds them best, and back; bool as 0 and 1.
BRRR_VX auto widened(const BF16* x) { return vx::bf16_to_f32(vx::load(&x->bits)); }
BRRR_VX auto widened(const F16* x) { return vx::f16_to_f32(vx::load(&x->bits)); }
BRRR_VX auto widened(const uint8_t* x) { return vx::u8_to_i32(vx::load(x)); }
BRRR_VX auto widened(const Bool* x) { return vx::mask_to_i32(vx::bool_to_b16(vx::load(&x->byte))); }
template <class T> BRRR_VX auto widened(const T* x) { return vx::load(x); }

template <class V> BRRR_VX void narrowed(float* to, V x) { vx::store(to, vx::to_f32(x)); }
template <class V> BRRR_VX void narrowed(double* to, V x) { vx::store(to, vx::to_f64(x)); }
template <class V> BRRR_VX void narrowed(int32_t* to, V x) { vx::store(to, vx::to_i32(x)); }
template <class V> BRRR_VX void narrowed(int64_t* to, V x) { vx::store(to, vx::to_i64(x)); }
template <class V> BRRR_VX void narrowed(BF16* to, V x) {
  vx::store(&to->bits, vx::f32_to_bf16(vx::to_f32(x)));
}
template <class V> BRRR_VX void narrowed(F16* to, V x) {
  vx::store(&to->bits, vx::f32_to_f16(vx::to_f32(x)));
}
BRRR_VX void narrowed(uint8_t* to, vx::i32 x) { vx::store(to, vx::i32_to_u8(x)); }
template <class V> BRRR_VX void narrowed(uint8_t* to, V x) {
  narrowed(to, vx::to_i32(vx::to_i64(x)));
}
template <class V> BRRR_VX void narrowed(Bool* to, V x) {
  vx::store(&to->byte, vx::b16_to_bool(vx::to_b16(x)));
}

template <class To, class From>
void run(To* dst, int64_t dst_stride, const From* src, int64_t src_stride, int64_t n) {
  if (dst_stride != 1 || src_stride != 1) {
    // Unrolled: a loop over single elements takes twice as long if it crosses a cache line.
#pragma GCC unroll 4
    for (int64_t i = 0; i < n; ++i) dst[i * dst_stride] = convert<To>(src[i * src_stride]);
  } else if constexpr (std::is_same_v<To, From>) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(To));
  } else {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) narrowed(dst + i, widened(src + i));
    for (; i < n; ++i) dst[i] = convert<To>(src[i]);
  }
}
void run_as(DType to, void* dst, int64_t dst_stride, DType from, const void* src,
            int64_t src_stride, int64_t n) {
  with_element(
      to, [=](auto t) __attribute__((always_inline)) {
        with_element(
            from, [=](auto f) __attribute__((always_inline)) {
              run(static_cast<decltype(t)*>(dst), dst_stride, static_cast<const decltype(f)*>(src),
                  src_stride, n);
            });
      });
}

// The smallest and largest value of an integer dtype.
std::pair<int64_t, int64_t> range_of(DType t) {
  if (t == kUInt8) return {0, UINT8_MAX};
  if (t == kInt32) return {INT32_MIN, INT32_MAX};
  return {INT64_MIN, INT64_MAX};
}

bool holds(DType t, Scalar v) {
  if (!is_integer(t)) return true;
  const auto [low, high] = range_of(t);
  if (!v.is_floating()) return v.to_int() >= low && v.to_int() <= high;
  const double x = std::trunc(v.to_double());  // NaN is in no range; 2^63 is beyond int64's end.
  return x >= static_cast<double>(low) && x <= static_cast<double>(high) && x < 0x1p63;
}

}  // namespace

void check_holds(const char* op, Scalar v, DType t) {
  if (holds(t, v)) return;
  const std::string number =
      v.is_floating() ? fmt::format("{}", v.to_double()) : fmt::format("{}", v.to_int());
  const bool finite = std::isfinite(v.to_double());
  BRRR_CHECK(finite, "{}: {} has no non-finite value {}; use a floating dtype", op, name(t),
             number);
  fail("{}: {} is out of the range of {}; use another dtype, or clamp the number", op, number,
       name(t));
}

int64_t nearest_integer(int64_t v, DType t) {
  const auto [low, high] = range_of(t);
  return std::clamp(v, low, high);
}

void load_tile(DType ct, void* dst, DType from, const char* src, int64_t stride, int64_t n) {
  run_as(ct, dst, 1, from, src, stride, n);
}

void store_tile(DType to, char* dst, int64_t stride, DType from, const void* src, int64_t n) {
  run_as(to, dst, stride, from, src, 1, n);
}

}  // namespace brrr
