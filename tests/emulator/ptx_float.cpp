// Floating-point instructions, as accurate as the ISA requires.

#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/emulator/ptx_warp.h"

namespace brrr::emulator::ptx {

namespace {

// Replaces a NaN result by the canonical NaN in float32. Payloads of float64 are the host's.
template <class T> T canonical(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return std::isnan(x) ? std::bit_cast<float>(0x7fffffffu) : x;
  } else {
    return x;
  }
}

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

float fma_to_zero(float a, float b, float c) {
  const volatile float x = a, y = b, z = c;
  const int before = std::fegetround();
  std::fesetround(FE_TOWARDZERO);
  const volatile float r = std::fma(x, y, z);
  std::fesetround(before);
  return canonical<float>(r);
}

// div.approx. The ISA defines the result for divisors so large that their reciprocal is subnormal.
float divide_approx(float a, float b) {
  const float size = std::fabs(b);
  if (size > 0x1p126f && std::isfinite(size)) {
    if (std::isinf(a)) return canonical(std::numeric_limits<float>::quiet_NaN());
    return std::copysign(0.0f, a * b);
  }
  return canonical(static_cast<float>(static_cast<double>(a) / b));
}

// rcp.approx.ftz.f64: only the upper 32 bits of the result.
double reciprocal_upper(double x) {
  if (std::fpclassify(x) == FP_SUBNORMAL) x = std::copysign(0.0, x);
  double r = std::bit_cast<double>(std::bit_cast<uint64_t>(1 / x) & ~uint64_t{0xffffffff});
  if (std::isnan(x)) r = x;
  return std::fpclassify(r) == FP_SUBNORMAL ? std::copysign(0.0, r) : r;
}

// min or max: the other operand if one is NaN; -0 is less than 0.
template <class T, bool greater> T choose(T a, T b) {
  if (std::isnan(a)) return canonical(b);
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) == greater ? b : a;
  return (a > b) == greater ? a : b;
}

template <class T> void add_float_comparisons(Table& t, const char* type) {
  const auto name = [&](const char* what) { return std::string("setp.") + what + type; };
  t[name("eq")] = {compare<T, [](T a, T b) { return (a == b); }>};
  t[name("ne")] = {compare<T, [](T a, T b) { return (a < b || a > b); }>};
  t[name("lt")] = {compare<T, [](T a, T b) { return (a < b); }>};
  t[name("le")] = {compare<T, [](T a, T b) { return (a <= b); }>};
  t[name("gt")] = {compare<T, [](T a, T b) { return (a > b); }>};
  t[name("ge")] = {compare<T, [](T a, T b) { return (a >= b); }>};
  t[name("equ")] = {compare<T, [](T a, T b) { return (!(a < b || a > b)); }>};
  t[name("neu")] = {compare<T, [](T a, T b) { return (!(a == b)); }>};
  t[name("ltu")] = {compare<T, [](T a, T b) { return (!(a >= b)); }>};
  t[name("leu")] = {compare<T, [](T a, T b) { return (!(a > b)); }>};
  t[name("gtu")] = {compare<T, [](T a, T b) { return (!(a <= b)); }>};
  t[name("geu")] = {compare<T, [](T a, T b) { return (!(a < b)); }>};
  t[name("num")] = {compare<T, [](T a, T b) { return (!std::isnan(a) && !std::isnan(b)); }>};
  t[name("nan")] = {compare<T, [](T a, T b) { return (std::isnan(a) || std::isnan(b)); }>};
}

template <class T> void add_float_type(Table& t, const char* type) {
  const auto both = [&](const char* what, Op op) {  // .rn is the default rounding
    t[std::string(what) + ".rn" + type] = op;
    t[std::string(what) + type] = op;
  };
  both("add", {binary<T, T, T, [](T a, T b) { return canonical<T>(a + b); }>});
  both("sub", {binary<T, T, T, [](T a, T b) { return canonical<T>(a - b); }>});
  both("mul", {binary<T, T, T, [](T a, T b) { return canonical<T>(a * b); }>});
  both("div", {binary<T, T, T, [](T a, T b) { return canonical<T>(a / b); }>});
  both("fma", {ternary<T, T, T, [](T a, T b, T c) { return canonical<T>(std::fma(a, b, c)); }>});
  both("sqrt", {unary<T, T, [](T a) { return canonical<T>(std::sqrt(a)); }>});
  both("rcp", {unary<T, T, [](T a) { return canonical<T>(1 / a); }>});
  t[std::string("neg") + type] = {unary<T, T, [](T a) { return -a; }>};
  t[std::string("abs") + type] = {unary<T, T, [](T a) { return std::fabs(a); }>};
  t[std::string("min") + type] = {binary<T, T, T, choose<T, false>>};
  t[std::string("max") + type] = {binary<T, T, T, choose<T, true>>};
  t[std::string("copysign") + type] = {
      binary<T, T, T, [](T a, T b) { return std::copysign(b, a); }>};
  add_float_comparisons<T>(t, type);
}

// An approximation is the double result rounded; with .ftz subnormals are flushed to zero.
template <auto f> void add_approx(Table& t, const std::string& name) {
  using F = float;
  t[name + ".approx.f32"] = {
      unary<F, F, [](F x) { return canonical(static_cast<F>(f(static_cast<double>(x)))); }>};
  t[name + ".approx.ftz.f32"] = {unary<F, F, [](F x) {
    return flush(canonical(static_cast<F>(f(static_cast<double>(flush(x))))));
  }>};
}

// rcp.approx: the nearest float or, depending on x, the one above or below it, since 1 ulp is all
// that the ISA guarantees.
float reciprocal_off(float x) {
  const float y = 1 / x;
  if (!std::isnormal(y)) return canonical(y);
  const uint32_t off = (std::bit_cast<uint32_t>(x) * 0x85ebca6bu >> 16) % 3;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + off - 1);
}
float reciprocal_off_ftz(float x) { return flush(reciprocal_off(flush(x))); }

}  // namespace

void add_float(Table& t) {
  add_float_type<float>(t, ".f32");
  add_float_type<double>(t, ".f64");
  t["fma.rz.f32"] = {ternary<float, float, float, fma_to_zero>};
  t["div.approx.f32"] = {binary<float, float, float, divide_approx>};
  t["rcp.approx.ftz.f64"] = {unary<double, double, reciprocal_upper>};
  t["rcp.approx.f32"] = {unary<float, float, reciprocal_off>};
  t["rcp.approx.ftz.f32"] = {unary<float, float, reciprocal_off_ftz>};
  add_approx<[](double x) { return 1 / std::sqrt(x); }>(t, "rsqrt");
  add_approx<[](double x) { return std::sqrt(x); }>(t, "sqrt");
  add_approx<[](double x) { return std::exp2(x); }>(t, "ex2");
  add_approx<[](double x) { return std::log2(x); }>(t, "lg2");
  add_approx<[](double x) { return std::sin(x); }>(t, "sin");
  add_approx<[](double x) { return std::cos(x); }>(t, "cos");
  add_approx<[](double x) { return std::tanh(x); }>(t, "tanh");
}

}  // namespace brrr::emulator::ptx
