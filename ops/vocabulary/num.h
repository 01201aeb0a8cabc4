#pragma once
// Num<V>: a value in a kernel, so that a row's generic lambda reads like the formula. V is a vector
// of ops/vocabulary/vec.h, or double for the oracle. The wrapper keeps `x * 0.5` in x's own type.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/vocabulary/vec.h"
#include "ops/vocabulary/vec_draw.h"
#include "ops/vocabulary/vec_math.h"

namespace brrr {

template <class V> struct Num;

template <class V> struct LaneOf { using type = V; };
template <> struct LaneOf<vx::f32> { using type = float; };
template <> struct LaneOf<vx::f64> { using type = double; };
template <> struct LaneOf<vx::i32> { using type = int32_t; };
template <> struct LaneOf<vx::i64> { using type = int64_t; };
template <class V> using Lane = typename LaneOf<V>::type;

template <class V> inline constexpr bool kIsScalar = std::is_arithmetic_v<V>;

/// The result of a comparison: a lane mask, or a bool.
template <class V> struct Mask {
  std::conditional_t<kIsScalar<V>, bool, vx::b16> m;
  [[gnu::always_inline]] friend Mask operator&(Mask a, Mask b) {
    return {static_cast<decltype(a.m)>(a.m & b.m)};
  }
  [[gnu::always_inline]] friend Mask operator|(Mask a, Mask b) {
    return {static_cast<decltype(a.m)>(a.m | b.m)};
  }
  [[gnu::always_inline]] friend Mask operator!(Mask a) {
    if constexpr (kIsScalar<V>) {
      return {!a.m};
    } else {
      return {~a.m};
    }
  }
};

/// The type that V's + - * run in: integers wrap around, which only unsigned ones may.
template <class V> struct WrapOf { using type = V; };
template <> struct WrapOf<vx::i32> { using type = vx::u32; };
template <> struct WrapOf<vx::i64> { using type = vx::u64; };

// Everything is inlined, even if the caller is flattened: for vectors of two registers g++ 12
// leaves calls in long functions, with vectors in memory (softmax took five times as long).
template <class V> struct Num {
  using Wrap = typename WrapOf<V>::type;
  V v;
  Num() = default;
  Num(V x) : v(x) {}  // NOLINT(google-explicit-constructor)
  template <class W, class = std::enable_if_t<std::is_same_v<W, Wrap> && !std::is_same_v<W, V>>,
            class = void>
  Num(W x) : v((V)x) {}  // NOLINT(google-explicit-constructor)
  static Wrap wrap(Num x) { return (Wrap)x.v; }
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> && !kIsScalar<V>>>
  Num(T x) : v(vx::splat(static_cast<Lane<V>>(x))) {}  // NOLINT(google-explicit-constructor)

  [[gnu::always_inline]] friend Num operator+(Num a, Num b) { return wrap(a) + wrap(b); }
  [[gnu::always_inline]] friend Num operator-(Num a, Num b) { return wrap(a) - wrap(b); }
  [[gnu::always_inline]] friend Num operator*(Num a, Num b) { return wrap(a) * wrap(b); }
  [[gnu::always_inline]] friend Num operator/(Num a, Num b) { return a.v / b.v; }
  [[gnu::always_inline]] friend Num operator-(Num a) { return -wrap(a); }
#define BRRR_COMPARE(sign, fn)                                        \
  [[gnu::always_inline]] friend Mask<V> operator sign(Num a, Num b) { \
    if constexpr (kIsScalar<V>) {                                     \
      return {a.v sign b.v};                                          \
    } else {                                                          \
      return {vx::fn(a.v, b.v)};                                      \
    }                                                                 \
  }
  BRRR_COMPARE(<, lt)
  BRRR_COMPARE(<=, le)
  BRRR_COMPARE(>, gt)
  BRRR_COMPARE(>=, ge)
  BRRR_COMPARE(==, eq)
  BRRR_COMPARE(!=, ne)
#undef BRRR_COMPARE
};

/// The upper bits of a draw's words, at most 31, as signed integers, whose conversion is cheaper.
inline Num<vx::i32> operator>>(Num<vx::u32> words, Num<vx::Line> by) {
  return (vx::i32)(words.v >> static_cast<unsigned>(by.v.first));
}

namespace vx {
/// The vocabulary for one double, by libm: what the oracle, Num<double>, computes with.
using std::exp, std::expm1, std::log, std::log1p, std::sqrt, std::pow, std::fma;
using std::floor, std::ceil, std::trunc, std::abs, std::isnan, std::isfinite;
using std::sin, std::cos, std::tanh, std::erf;
inline double normal_cdf(double x) { return fma(erf(x * 0x1.6a09e667f3bcdp-1), 0.5, 0.5); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline double sigmoid(double x) {
  return x >= 0 ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x) / (1.0 + std::exp(x));
}
inline double round(double x) { return std::nearbyint(x); }
inline double sign(double x) { return std::isnan(x) ? x : (x > 0) - (x < 0); }
inline double min(double x, double y) { return std::isnan(x) || x < y ? x : y; }
inline double max(double x, double y) { return std::isnan(x) || x > y ? x : y; }
inline double remainder(double x, double y) {
  const double r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
inline double floor_div(double x, double y) {
  if (y == 0) return x / y;
  const double r = std::fmod(x, y), q = (x - r) / y;  // As PyTorch's: -1 for 1 and -infinity.
  return std::nearbyint(r != 0 && (r < 0) != (y < 0) ? q - 1 : q);
}
inline double where(bool m, double a, double b) { return m ? a : b; }
}  // namespace vx

}  // namespace brrr
