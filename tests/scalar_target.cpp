#include "tests/scalar_target.h"

#include "ops/program/cpu.h"
#include "ops/vocabulary/spelling.h"

namespace brrr::program {

const char* scalar_prelude() {
  return R"(
namespace scalar {
// float64 by libm; float32 as the rounded float64 result.
#define F1(name, f) static double name(double x) { return f; } \
  static float name(float x) { return (float)name((double)x); }
#define LIB(name) F1(name, __builtin_##name(x))
LIB(exp) LIB(expm1) LIB(log) LIB(log1p) LIB(sqrt) LIB(sin) LIB(cos) LIB(tanh) LIB(erf) LIB(floor)
LIB(ceil) LIB(trunc) F1(falling_exp, exp(x)) F1(unit_sin, sin(x)) F1(unit_cos, cos(x))
F1(normal_cdf, __builtin_fma(erf(x * 0x1.6a09e667f3bcdp-1), 0.5, 0.5))
F1(sigmoid, x < 0 ? __builtin_exp(x) / (1 + __builtin_exp(x)) : 1 / (1 + __builtin_exp(-x)))
F1(round, __builtin_nearbyint(x)) template <class T> static T rsqrt(T x) { return 1 / sqrt(x); }
template <class T> static bool turns(T r, T y) { return r != 0 && (r < 0) != (y < 0); }
template <class T> static T turned(T r, T y) { return turns(r, y) ? r + y : r; }
static double modulo(double x, double y) { return turned(__builtin_fmod(x, y), y); }
static long modulo(long x, long y) { return y == 0 || y == -1 ? 0 : turned(x % y, y); }
static double quotient(double x, double y) {
  const double r = __builtin_fmod(x, y), q = (x - r) / y;
  return y == 0 ? x / y : __builtin_nearbyint(turns(r, y) ? q - 1 : q);
}
static long quotient(long x, long y) {
  return y == 0 ? 0 : y == -1 ? (long)(0ul - (unsigned long)x) : (x - modulo(x, y)) / y;
}
static long pow(long x, long y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;
  return y == 0 ? 1 : (long)((unsigned long)x * (unsigned long)pow(x, y - 1));
}
static double pow(double x, double y) { return __builtin_pow(x, y); }
static float pow(float x, float y) { return (float)pow((double)x, (double)y); }
static int pow(int x, int y) { return (int)pow((long)x, (long)y); }
#define TEST(T, name, sign) static int name(T x, T y) { return -(x sign y); }
#define ALL(T, W) TEST(T, lt, <) TEST(T, le, <=) TEST(T, gt, >) TEST(T, ge, >=) TEST(T, eq, ==) \
  TEST(T, ne, !=) static int isnan(T x) { return -(x != x); } \
  static T splat(T x) { return x; } static T load(const T* p) { return *p; } \
  static void store(T* p, T x) { *p = x; } static T checked(T x, T) { return x; } \
  static T where(int m, T x, T y) { return m ? x : y; } \
  static T sign(T x) { return x != x ? x : (T)((x > 0) - (x < 0)); } \
  static T min(T x, T y) { return x != x || x < y ? x : y; } \
  static T max(T x, T y) { return x != x || x > y ? x : y; } \
  static T remainder(T x, T y) { return (T)modulo((W)x, (W)y); } \
  static T floor_div(T x, T y) { return (T)quotient((W)x, (W)y); } \
  static int to_b16(T x) { return -(x != 0); } static T abs(T x) { return x > 0 ? x : 0 - x; } \
  static float to_f32(T x) { return (float)x; } static double to_f64(T x) { return (double)x; }
#define WHOLE(T) static T floor(T x) { return x; } static T ceil(T x) { return x; } \
  static T trunc(T x) { return x; } static T round(T x) { return x; }
WHOLE(int) WHOLE(long) ALL(float, double) ALL(double, double) ALL(int, long) ALL(long, long)
static float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static int isfinite(double x) { return -(x - x == 0); }
// A value out of range becomes the smallest integer.
static long to_i64(long x) { return x; } static long to_i64(int x) { return x; }
static long to_i64(double x) { return x < 0x1p63 && x >= -0x1p63 ? (long)x : 1l << 63; }
static int to_i32(long x) { return (int)x; } static int to_i32(int x) { return x; }
static int to_i32(double x) { return x < 0x1p31 && x > -0x1.00000002p31 ? (int)x : 1 << 31; }
#define MASK(type, T) static T mask_to_##type(int m) { return (T)(m & 1); }
MASK(f32, float) MASK(f64, double) MASK(i32, int) MASK(i64, long)
template <class T> static int load(const T* p) { return *p; }  // Of bytes and 16-bit floats.
template <class T> static void store(T* p, int x) { *p = (T)x; }
static int u8_to_i32(int x) { return x; } static int bool_to_b16(int x) { return -(x != 0); }
static int i32_to_u8(int x) { return x & 255; } static int b16_to_bool(int m) { return m & 1; }
// Exponents from 1 - bias in a field above `digits` bits of the significand; ties to even.
static float of_half(int h, int digits, int bias) {
  const int last = (32768 >> digits) - 1, field = h >> digits & last, m = h & ((1 << digits) - 1);
  double x = __builtin_ldexp(field ? m + (1 << digits) : m, (field ? field : 1) - bias - digits);
  if (field == last) x = m != 0 ? __builtin_nan("") : __builtin_inf();
  return (float)(h >> 15 ? -x : x);
}
static unsigned short to_half(float x, int digits, int bias) {
  const int last = (32768 >> digits) - 1, sign = __builtin_signbit(x) ? 32768 : 0;
  if (x != x) return 32767;
  const int e = max(x != 0 && x - x == 0 ? __builtin_ilogb((double)x) : 1 - bias, 1 - bias);
  const double m = __builtin_nearbyint(__builtin_ldexp(__builtin_fabs((double)x), digits - e));
  const double bits = m + __builtin_ldexp((double)(e + bias - 1), digits);  // A carry is one more.
  return (unsigned short)(sign | (int)min(bits, __builtin_ldexp((double)last, digits)));
}
#define HALF(name, digits, bias) \
  static float name##_to_f32(int h) { return of_half(h, digits, bias); } \
  static unsigned short f32_to_##name(float x) { return to_half(x, digits, bias); } \
  static float round_##name(float x) { return name##_to_f32(f32_to_##name(x)); }
HALF(bf16, 7, 127) HALF(f16, 10, 15)
}  // namespace scalar
)";
}

// Statement by statement, each for all elements `k` of the space: a per-row or global value is
// stored once per element. Folds run sequentially, float32 in double.
std::string scalar_text(const Program& p, const std::string& name) {
  const std::vector<CpuArgument> arguments = cpu_arguments(p);
  const int64_t all = p.space.numel(), n = std::max<int64_t>(p.row, 1);
  const std::string row = fmt::format("k / {0}l * {0}l", n), column = fmt::format("k % {}l", n);
  const auto argument = [&](CpuArgument::Kind kind, int which, DType t) {
    size_t k = 0;
    while (arguments[k].kind != kind || arguments[k].which != which) ++k;
    return fmt::format("({}*)a[{}]", spelling(t).element, k);
  };
  const auto number = [&](int which) {
    const Number& c = p.numbers[static_cast<size_t>(which)];
    return c.control ? "*" + argument(CpuArgument::Number, which, c.dtype) : literal(c);
  };
  const auto place = [&](const Statement& s) {  // What it loads or where it stores.
    const Window& w = p.window(s);
    std::string at = w.in_memory() ? argument(CpuArgument::Window, s.which, w.dtype) : "0";
    for (int64_t d = p.space.ndim, inner = 1; d-- > 0; inner *= p.space.size[d])
      at += fmt::format(" + k / {}l % {}l * {}l", inner, p.space.size[d], w.stride[d]);
    return at;
  };
  const auto fold = [&](const Statement& s, int64_t count, const std::string& first, int64_t step) {
    const char* type = s.type == kFloat32 ? "double" : spelling(s.type).element;
    const std::string x = fmt::format("({})v{}[{} + j * {}l]", type, s.args[0], first, step);
    return fmt::format("({{ {} y = v{}[k]; for (long j = 0; j < {}; ++j) y = {}; y; }})", type,
                       s.args[1], count, fill(s.text, {"y", x}));
  };
  const auto value = [&](const Statement& s, const std::vector<std::string>& args) {
    if (s.kind == Statement::Formula) return fill(s.text, args);
    if (s.kind == Statement::Fold) return fold(s, n, row, 1);
    if (s.kind == Statement::FoldRows) return fold(s, all / n, column, n);
    if (s.kind == Statement::Total) return fold(s, all / n, "0", n);
    if (s.kind == Statement::Number) return splat(s.type, number(s.which));
    if (s.kind == Statement::Constant) return splat(s.type, s.text);
    if (s.kind == Statement::Length) return splat(s.type, std::to_string(n));
    if (s.kind == Statement::Store)
      return fill("store($0, $1)", {place(s), fill(spelling(s.type).store, args)});
    if (!p.window(s).in_memory()) return place(s);
    const std::string x = fill(spelling(p.window(s).dtype).load, {"load(" + place(s) + ")"});
    if (s.kind == Statement::Load) return x;
    if (s.kind == Statement::IsAt) return fmt::format("eq({}, {})", x, column);
    const std::string counts = fmt::format("ne({}, {})", x, number(p.ignored(s)));
    if (s.kind == Statement::Counts) return counts;
    return fmt::format("{} ? v{}[{} + {}] : 0", counts, s.args[0], row, x);
  };
  std::string text = "namespace scalar {\nextern \"C\" void " + name + "(char* const* a) {\n";
  for (const Statement& s : p.statements) {
    const auto id = &s - p.statements.data();
    std::vector<std::string> args;
    for (int x : s.args) args.push_back(fmt::format("v{}[k]", x));
    const char* type = s.type == kBool ? "int" : spelling(s.type).element;
    if (s.kind != Statement::Store) text += fmt::format("  static {} v{}[{}];\n", type, id, all);
    const std::string to = s.kind == Statement::Store ? "" : fmt::format("v{}[k] = ", id);
    text += fmt::format("  for (long k = 0; k < {}; ++k) {}{};\n", all, to, value(s, args));
  }
  return text + "}\n}\n";
}

}  // namespace brrr::program
