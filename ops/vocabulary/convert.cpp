#include "ops/vocabulary/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/check.h"
#include "ops/vocabulary/vec_convert.h"

namespace brrr {

namespace {

// Tags for storage types that share a C++ type.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
// What an element is in memory.
template <class T>
using Raw = std::conditional_t<sizeof(T) == 2, uint16_t,
                               std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;

template <class F> void with_compute(DType t, const F& f) {
  const int i = compute_index(t);
  i == 0 ? f(float{}) : i == 1 ? f(double{}) : i == 2 ? f(int64_t{}) : f(int32_t{});
}
template <class F> void with_storage(DType t, const F& f) {
  if (t == kBFloat16) return f(BF16{});
  if (t == kFloat16) return f(F16{});
  if (t == kUInt8) return f(uint8_t{});
  if (t == kBool) return f(bool{});
  with_compute(t, f);
}

// Sixteen of them in the vector that holds them best, and back; bool as 0 and 1.
BRRR_VX auto widened(BF16, vx::u16 x) { return vx::bf16_to_f32(x); }
BRRR_VX auto widened(F16, vx::u16 x) { return vx::f16_to_f32(x); }
BRRR_VX auto widened(uint8_t, vx::u8 x) { return vx::u8_to_i32(x); }
BRRR_VX auto widened(bool, vx::u8 x) { return vx::mask_to_i32(vx::bool_to_b16(x)); }
template <class T, class V> BRRR_VX V widened(T, V x) { return x; }

template <class V> BRRR_VX auto narrowed(float, V x) { return vx::to_f32(x); }
template <class V> BRRR_VX auto narrowed(double, V x) { return vx::to_f64(x); }
template <class V> BRRR_VX auto narrowed(int32_t, V x) { return vx::to_i32(x); }
template <class V> BRRR_VX auto narrowed(int64_t, V x) { return vx::to_i64(x); }
template <class V> BRRR_VX auto narrowed(BF16, V x) { return vx::f32_to_bf16(vx::to_f32(x)); }
template <class V> BRRR_VX auto narrowed(F16, V x) { return vx::f32_to_f16(vx::to_f32(x)); }
template <class V> BRRR_VX auto narrowed(uint8_t, V x) {
  return vx::i32_to_u8(vx::to_i32(vx::to_i64(x)));
}
template <class V> BRRR_VX auto narrowed(bool, V x) { return vx::b16_to_bool(vx::to_b16(x)); }

template <class To, class From>
void run(To to, char* dst, int64_t dst_stride, From from, const char* src, int64_t src_stride,
         int64_t n) {
  auto* out = reinterpret_cast<Raw<To>*>(dst);
  const auto* in = reinterpret_cast<const Raw<From>*>(src);
  const bool dense = dst_stride == 1 && src_stride == 1;
  int64_t i = 0;
  if constexpr (std::is_same_v<To, From>) {
    if (dense) {
      std::memcpy(out, in, static_cast<size_t>(n) * sizeof *out);
      return;
    }
    for (; src_stride != 0 && i < n; ++i) out[i * dst_stride] = in[i * src_stride];
  } else {
    for (; dense && i + 16 <= n; i += 16) {
      vx::store(out + i, narrowed(to, widened(from, vx::load(in + i))));
    }
  }
  for (; i < n; i += 16) {
    const auto lanes = static_cast<int>(std::min<int64_t>(16, n - i));
    const auto x = narrowed(
        to, widened(from, src_stride ? vx::load_strided_n(in + i * src_stride, src_stride, lanes)
                                     : vx::splat(*in)));
    if (dst_stride == 1 && lanes == 16)
      vx::store(out + i, x);
    else
      vx::store_strided_n(out + i * dst_stride, x, dst_stride, lanes);
  }
}

// The smallest and largest number of an integer dtype.
struct Range {
  int64_t low, high;
};
Range range_of(DType t) {
  if (t == kUInt8) return {0, UINT8_MAX};
  return t == kInt32 ? Range{INT32_MIN, INT32_MAX} : Range{INT64_MIN, INT64_MAX};
}

bool holds(DType t, Scalar v) {
  if (!is_integer(t)) return true;
  const Range r = range_of(t);
  if (!v.is_floating()) return v.to_int() >= r.low && v.to_int() <= r.high;
  const double x = std::trunc(v.to_double());  // NaN is in no range; 2^63 is beyond int64's end.
  return x >= static_cast<double>(r.low) && x <= static_cast<double>(r.high) && x < 0x1p63;
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
  const Range r = range_of(t);
  return std::clamp(v, r.low, r.high);
}

float bfloat16_to_float(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }
uint16_t float_to_bfloat16(float x) {
  const auto b = std::bit_cast<uint32_t>(x);
  if (x != x) return static_cast<uint16_t>((b >> 16) | 0x40);
  return static_cast<uint16_t>((b + 0x7fffu + (b >> 16 & 1)) >> 16);
}

// The one definition of the 16-bit formats is the vector one; a single value is one lane of it.
// (Inlined into loops over single values with AVX2, these end g++ 12 by an internal error.)
[[gnu::noinline]] float float16_to_float(uint16_t h) { return vx::f16_to_f32(vx::splat(h))[0]; }
[[gnu::noinline]] uint16_t float_to_float16(float x) { return vx::f32_to_f16(vx::splat(x))[0]; }

void load_tile(DType ct, void* dst, DType from, const char* src, int64_t stride, int64_t n) {
  with_compute(ct, [&](auto to) {
    with_storage(from, [&](auto s) { run(to, static_cast<char*>(dst), 1, s, src, stride, n); });
  });
}

void store_tile(DType to, char* dst, int64_t stride, DType from, const void* src, int64_t n) {
  const auto* in = static_cast<const char*>(src);
  with_storage(to, [&](auto t) {
    if (from == kBool)
      run(t, dst, stride, bool{}, in, 1, n);
    else
      with_compute(from, [&](auto f) { run(t, dst, stride, f, in, 1, n); });
  });
}

}  // namespace brrr
