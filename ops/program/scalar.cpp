#include "ops/program/scalar.h"

#include "ops/program/cpu.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

const char* scalar_prelude() {
  return R"(
namespace scalar {
// float64 by libm; float32 as what float64 gives, rounded.
#define F1(name, f) \
  static double name(double x) { return f; } \
  static float name(float x) { return (float)name((double)x); }
#define LIBM(name) F1(name, __builtin_##name(x))
LIBM(exp) LIBM(expm1) LIBM(log) LIBM(log1p) LIBM(sqrt) LIBM(sin) LIBM(cos) LIBM(tanh) LIBM(erf)
LIBM(floor) LIBM(ceil) LIBM(trunc) F1(round, __builtin_nearbyint(x))
F1(unit_sin, sin(x)) F1(unit_cos, cos(x))
F1(sigmoid, x < 0 ? __builtin_exp(x) / (1 + __builtin_exp(x)) : 1 / (1 + __builtin_exp(-x)))
static float rsqrt(float x) { return 1 / sqrt(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double modulo(double x, double y) {
  const double r = __builtin_fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static double quotient(double x, double y) {
  if (y == 0) return x / y;
  const double r = __builtin_fmod(x, y), q = (x - r) / y;
  return __builtin_nearbyint(r != 0 && (r < 0) != (y < 0) ? q - 1 : q);
}
static long modulo(long x, long y) {
  if (y == 0 || y == -1) return 0;
  return x % y != 0 && (x < 0) != (y < 0) ? x % y + y : x % y;
}
static long quotient(long x, long y) {
  if (y == 0) return 0;
  return y == -1 ? (long)(0ul - (unsigned long)x) : (x - modulo(x, y)) / y;
}
static long pow(long x, long y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
  unsigned long r = 1;
  for (; y > 0; --y) r *= (unsigned long)x;
  return (long)r;
}
static double pow(double x, double y) { return __builtin_pow(x, y); }
static float pow(float x, float y) { return (float)pow((double)x, (double)y); }
static int pow(int x, int y) { return (int)pow((long)x, (long)y); }
#define ALL(T, W) \
  static T splat(T x) { return x; } static T load(const T* p) { return *p; } \
  static void store(T* p, T x) { *p = x; } \
  static int lt(T x, T y) { return -(x < y); } static int le(T x, T y) { return -(x <= y); } \
  static int gt(T x, T y) { return -(x > y); } static int ge(T x, T y) { return -(x >= y); } \
  static int eq(T x, T y) { return -(x == y); } static int ne(T x, T y) { return -(x != y); } \
  static T where(int m, T x, T y) { return m ? x : y; } \
  static int isnan(T x) { return -(x != x); } \
  static T abs(T x) { return x > 0 ? x : 0 - x; } \
  static T sign(T x) { return x != x ? x : (T)((x > 0) - (x < 0)); } \
  static T min(T x, T y) { return x != x || x < y ? x : y; } \
  static T max(T x, T y) { return x != x || x > y ? x : y; } \
  static T remainder(T x, T y) { return (T)modulo((W)x, (W)y); } \
  static T floor_div(T x, T y) { return (T)quotient((W)x, (W)y); } \
  static int to_b16(T x) { return -(x != 0); } \
  static float to_f32(T x) { return (float)x; } static double to_f64(T x) { return (double)x; }
#define WHOLE(T) \
  static T floor(T x) { return x; } static T ceil(T x) { return x; } \
  static T trunc(T x) { return x; } static T round(T x) { return x; }
WHOLE(int) WHOLE(long)
ALL(float, double) ALL(double, double) ALL(int, long) ALL(long, long)
static float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static int isfinite(double x) { return -(x - x == 0); }
// What is out of range is the smallest integer.
static long to_i64(long x) { return x; } static long to_i64(int x) { return x; }
static long to_i64(double x) { return x < 0x1p63 && x >= -0x1p63 ? (long)x : 1l << 63; }
static int to_i32(long x) { return (int)x; } static int to_i32(int x) { return x; }
static int to_i32(double x) { return x < 0x1p31 && x > -0x1.00000002p31 ? (int)x : 1 << 31; }
#define mask_to_f32 (float)b16_to_bool
#define mask_to_f64 (double)b16_to_bool
#define mask_to_i32 b16_to_bool
#define mask_to_i64 (long)b16_to_bool
static int load(const unsigned char* p) { return *p; }
static unsigned load(const unsigned short* p) { return *p; }
static void store(unsigned char* p, int x) { *p = (unsigned char)x; }
static void store(unsigned short* p, unsigned short x) { *p = x; }
#define u8_to_i32(x) (x)
static int i32_to_u8(int x) { return x & 255; }
static int bool_to_b16(int x) { return -(x != 0); }
static int b16_to_bool(int m) { return m & 1; }
// A sign, exponents from 1 - bias in a field above `digits` of the significand; ties to even.
static float of_half(unsigned h, int digits, int bias) {
  const int field = (int)(h >> digits) & (32768 >> digits) - 1, last = (32768 >> digits) - 1;
  const double m = h & ((1u << digits) - 1);
  double x = __builtin_ldexp(field ? m + (1 << digits) : m, (field ? field : 1) - bias - digits);
  if (field == last) x = m != 0 ? __builtin_nan("") : __builtin_inf();
  return (float)(h >> 15 ? -x : x);
}
static unsigned short to_half(float x, int digits, int bias) {
  const int last = (32768 >> digits) - 1;
  const unsigned sign = __builtin_signbit(x) ? 32768 : 0;
  if (x != x) return (unsigned short)(sign | (unsigned)last << digits | 1u << (digits - 1));
  int e = x != 0 && x - x == 0 ? __builtin_ilogb((double)x) : 1 - bias;
  if (e < 1 - bias) e = 1 - bias;
  const double m = __builtin_nearbyint(__builtin_ldexp(__builtin_fabs((double)x), digits - e));
  double bits = m + __builtin_ldexp((double)(e + bias - 1), digits);  // A carry ends in the field.
  const double most = __builtin_ldexp((double)last, digits);
  return (unsigned short)(sign | (unsigned)(bits < most ? bits : most));
}
static float bf16_to_f32(unsigned h) { return of_half(h, 7, 127); }
static float f16_to_f32(unsigned h) { return of_half(h, 10, 15); }
static unsigned short f32_to_bf16(float x) { return to_half(x, 7, 127); }
static unsigned short f32_to_f16(float x) { return to_half(x, 10, 15); }
static float round_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }
static float round_f16(float x) { return f16_to_f32(f32_to_f16(x)); }
}  // namespace scalar
)";
}

std::string scalar_text(const Program& p, const std::string& name) {
  const std::vector<CpuArgument> arguments = cpu_arguments(p);
  const auto place = [&](CpuArgument::Kind kind, int which) {
    size_t k = 0;
    while (arguments[k].kind != kind || arguments[k].which != which) ++k;
    return k;
  };
  const auto leaf = [&](const Statement& s) {
    if (s.kind == Statement::Number) {
      const Number& c = p.numbers[static_cast<size_t>(s.which)];
      const char* type = spelling(c.dtype).element;
      if (c.control)
        return splat(s.type, fmt::format("*({}*)a[{}]", type, place(CpuArgument::Number, s.which)));
      return splat(s.type, literal(c));
    }
    const Window& w = p.windows[static_cast<size_t>(s.which)];
    std::string at = "0";
    for (int d = 0; d < p.space.ndim; ++d) at += fmt::format(" + j{} * {}l", d, w.stride[d]);
    if (w.source == Window::Index) return fmt::format("({})", at);
    const Spelling& how = spelling(w.dtype);
    at = fmt::format("({}*)a[{}] + {}", how.element, place(CpuArgument::Window, s.which), at);
    return s.kind == Statement::Load ? fill(how.load, {fmt::format("load({})", at)})
                                     : fmt::format("store({}, {})", at, how.store);
  };
  std::string text = fmt::format(
      "namespace scalar {{\nextern \"C\" void {}([[maybe_unused]] char* const* a) {{\n", name);
  for (int d = 0; d < p.space.ndim; ++d) {
    text += fmt::format("  for (long j{0} = 0; j{0} < {1}l; ++j{0})\n", d, p.space.size[d]);
  }
  std::vector<std::string> names;
  return text + "  {\n" + lines(p.statements, "    ", leaf, names) + "  }\n}\n}\n";
}

}  // namespace brrr::program
