// The CPU vector prelude: every function against double precision, over the whole float range.
#include <doctest/doctest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops/vocabulary/vec_fold.h"
#include "ops/vocabulary/vec_random.h"
#include "tests/sanitizer.h"

namespace vx = brrr::vx;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_f = std::numeric_limits<float>::quiet_NaN();
constexpr int int_min = std::numeric_limits<int>::min();
constexpr long long_min = std::numeric_limits<long>::min();

float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

template <class T> bool same_bits(T a, T b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Error in units of the last place of the float nearest to `want`.
double ulp_error(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : 1e9;
  if (got == 0 && want == 0) return std::signbit(got) == std::signbit(want) ? 0 : 1e9;
  if (static_cast<double>(got) == want) return 0;
  // Overflow counts from 2^128, where the next float would be.
  double place = want == 0 ? -149 : std::isinf(want) ? 104 : std::max(std::ilogb(want) - 23, -149);
  place = std::min(place, 104.0);
  auto finite = [](double v) { return std::isinf(v) ? std::copysign(0x1p128, v) : v; };
  if (std::fabs(want) >= 0x1p128) want = std::copysign(0x1p128, want);
  return std::fabs(finite(got) - want) / std::exp2(place);
}

struct Row {
  const char* name;
  vx::f32 (*f)(vx::f32);
  double (*reference)(double);
  double bound;  // ulp, as the table in vec_math.h says
};

#define ROW(name, reference, bound)                                                                \
  Row {                                                                                            \
#name, [](vx::f32 x) { return vx::name(x); }, [](double x) -> double { return reference; },    \
                                                                                             bound \
  }

const Row rows[] = {
    ROW(exp, std::exp(x), 0.87),
    ROW(expm1, std::expm1(x), 1.5),
    ROW(log, std::log(x), 0.85),
    ROW(log1p, std::log1p(x), 1.5),
    ROW(sin, std::sin(x), 1.9),
    ROW(cos, std::cos(x), 2.0),
    ROW(tanh, std::tanh(x), 1.4),
    ROW(sigmoid, 1 / (1 + std::exp(-x)), 2.5),
    ROW(erf, std::erf(x), 2.0),
    ROW(sqrt, std::sqrt(x), 0.5001),
    ROW(rsqrt, 1 / std::sqrt(x), 1.5),
    ROW(floor, std::floor(x), 0),
    ROW(ceil, std::ceil(x), 0),
    ROW(trunc, std::trunc(x), 0),
    ROW(round, std::nearbyint(x), 0),
    ROW(abs, std::fabs(x), 0),
    {"normal_cdf less 1/2", [](vx::f32 x) { return vx::above_half(vx::abs(x)); },
     [](double x) { return std::erf(std::fabs(x) * 0x1.6a09e667f3bcdp-1) / 2; }, 1.6},
};

// 16 bit patterns `step` apart.
vx::f32 patterns(std::uint64_t first, std::uint64_t step) {
  float x[16];
  for (std::uint64_t k = 0; k < 16; ++k)
    x[k] = from_bits(static_cast<std::uint32_t>(first + k * step));
  return vx::load(x);
}

// Every step-th bit pattern, so denormals, infinities and NaN are among them.
double max_ulp(const Row& row, std::uint64_t step) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 16 * step) {
    const vx::f32 x = patterns(bits, step), y = row.f(x);
    for (int k = 0; k < 16; ++k) worst = std::max(worst, ulp_error(y[k], row.reference(x[k])));
  }
  return worst;
}

// Lanes where a and b differ and are not both NaN.
vx::b16 differ(vx::f32 a, vx::f32 b) {
  return vx::ne((vx::i32)a, (vx::i32)b) & ~(vx::isnan(a) & vx::isnan(b));
}

// Every step-th float: bounded functions stay in range, and unit forms equal the general ones.
long unit_violations(std::uint64_t step) {
  long wrong = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 16 * step) {
    const vx::f32 x = patterns(bits, step), one = vx::splat(1.0f);
    const vx::f32 s = vx::sin(x), c = vx::cos(x);
    vx::b16 bad =
        ~vx::gt(vx::abs(x), one) & (differ(vx::unit_sin(x), s) | differ(vx::unit_cos(x), c));
    for (const vx::f32& y : {s, c, vx::tanh(x), vx::erf(x), vx::normal_cdf(x), vx::sigmoid(x)}) {
      bad = bad | vx::gt(vx::abs(y), one);
    }
    wrong += vx::any(bad);
  }
  return wrong;
}

// Every step-th float that is not positive, and NaNs of both signs: exp has a cheaper form for
// them.
long falling_violations(std::uint64_t step) {
  long wrong = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 16 * step) {
    const vx::f32 x = patterns(bits, step);
    wrong += vx::any(~vx::gt(x, vx::f32{}) & differ(vx::falling_exp(x), vx::exp(x)));
  }
  return wrong;
}

// Vectors in which sines or cosines of the other elements differ when one argument is huge, so that
// all elements are computed out of line.
long near_violations(std::uint64_t step) {
  long wrong = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 16 * step) {
    const vx::f32 x = patterns(bits, step);
    vx::f32 far_first = x, far_last = x;
    far_first[0] = far_last[15] = 1e6f;
    vx::b16 first = differ(vx::cos(far_first), vx::cos(x)) | differ(vx::sin(far_first), vx::sin(x));
    vx::b16 last = differ(vx::cos(far_last), vx::cos(x)) | differ(vx::sin(far_last), vx::sin(x));
    first[0] = last[15] = 0;
    wrong += vx::any(first | last);
  }
  return wrong;
}

float one(vx::f32 v) { return v[3]; }
// By value, because clang allows no reference to a vector's element.
template <class V> auto lane(V v, int i) { return v[i]; }
template <class T> auto all_lanes(T x) { return vx::splat(x); }

// Rounds to a format with `digits` significant bits whose smallest denormal is 2^low.
float round_to(float x, int digits, int low, float limit) {
  if (x == 0 || !std::isfinite(x)) return x;
  int unit = std::max(std::ilogb(x) + 1 - digits, low);
  double r = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -unit)), unit);
  return std::fabs(r) >= limit ? std::copysign(inf, x) : std::copysign(static_cast<float>(r), x);
}

std::uint32_t next_random(std::uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<std::uint32_t>(state >> 32);
}

}  // namespace

TEST_CASE("vec: float32 functions keep their documented error over all floats") {
  for (const Row& row : rows) {
    double worst = max_ulp(row, 2003);
    MESSAGE(std::string(row.name) << ": max " << worst << " ulp, documented " << row.bound);
    CHECK(worst <= row.bound);
  }
}

TEST_CASE("vec: bounded functions stay in [-1, 1], where unit_sin and unit_cos have sin's bits") {
  CHECK(unit_violations(brrr::test::long_tests() ? 1 : 97) == 0);
}

TEST_CASE("vec: falling_exp has exp's bits where no element is positive") {
  CHECK(falling_violations(brrr::test::long_tests() ? 1 : 97) == 0);
}

TEST_CASE("vec: masked elements at -infinity cause no product that underflows") {
  // Some processors take a hundred cycles for a denormal result.
  for (const float x : {-inf, -1e30f, -1e9f, -1e4f, -200.f, -0.5f, 0.f}) {
    volatile float at = x;  // Prevents constant folding.
    for (const auto f :
         {+[](vx::f32 v) { return vx::exp(v); }, +[](vx::f32 v) { return vx::falling_exp(v); },
          +[](vx::f32 v) { return vx::sigmoid(v); }}) {
      std::feclearexcept(FE_ALL_EXCEPT);
      volatile float got = f(all_lanes(at))[5];
      CHECK_FALSE(std::fetestexcept(FE_UNDERFLOW));
      if (x < -104) CHECK(got == 0);
    }
  }
}

TEST_CASE("vec: sin and cos give an argument the same bits, whatever its neighbours") {
  CHECK(near_violations(brrr::test::long_tests() ? 1 : 97) == 0);
}

TEST_CASE("vec: pow keeps its documented error and the special cases of C") {
  std::uint64_t state = 1;
  double worst = 0;
  for (int block = 0; block < 20000; ++block) {
    float x[16], y[16], z[16];
    for (int k = 0; k < 16; ++k) {
      int a = static_cast<int>(next_random(state)), b = static_cast<int>(next_random(state));
      x[k] = block % 3 == 0   ? from_bits(static_cast<std::uint32_t>(a))
             : block % 3 == 1 ? std::fabs(static_cast<float>(a)) * 0x1p-26f
                              : 1.0f + static_cast<float>(a) * 0x1p-34f;
      y[k] = static_cast<float>(b) * (block % 3 == 2 ? 0x1p-18f : 0x1p-26f);
    }
    vx::store(z, vx::pow(vx::load(x), vx::load(y)));
    for (int k = 0; k < 16; ++k)
      worst = std::max(worst, ulp_error(z[k], std::pow(double(x[k]), double(y[k]))));
  }
  MESSAGE("pow: max " << worst << " ulp, documented 1.2");
  CHECK(worst <= 1.2);
  const float special[] = {0.f,     -0.f,  1,      -1,     2,        -2,        3,
                           -3,      .5f,   -.5f,   inf,    -inf,     nan_f,     1e-45f,
                           -1e-45f, 3e38f, -3e38f, 1e-38f, 16777215, -16777215, 33554432};
  for (float a : special)
    for (float b : special) {
      CAPTURE(a);
      CAPTURE(b);
      float got = one(vx::pow(all_lanes(a), all_lanes(b)));
      CHECK(ulp_error(got, std::pow(double(a), double(b))) <= 1.2);
    }
}

TEST_CASE("vec: exact values, signed zeros, order, classes") {
  CHECK(one(vx::exp(all_lanes(0.f))) == 1);
  CHECK(one(vx::cos(all_lanes(0.f))) == 1);
  CHECK(one(vx::log(all_lanes(1.f))) == 0);
  CHECK(one(vx::sigmoid(all_lanes(0.f))) == 0.5f);
  for (auto f : {rows[1].f, rows[3].f, rows[4].f, rows[6].f, rows[8].f})
    CHECK(same_bits(one(f(all_lanes(-0.f))), -0.f));
  CHECK(one(vx::round(all_lanes(2.5f))) == 2);
  CHECK(one(vx::round(all_lanes(-3.5f))) == -4);
  CHECK(one(vx::fma(all_lanes(1 + 0x1p-12f), all_lanes(1 + 0x1p-12f), -1 - 0x1p-11f)) == 0x1p-24f);
  for (bool swap : {false, true}) {
    vx::f32 a = all_lanes(swap ? nan_f : 1.f), b = all_lanes(swap ? 1.f : nan_f);
    CHECK(std::isnan(one(vx::min(a, b))));
    CHECK(std::isnan(one(vx::max(a, b))));
    CHECK(std::isnan(vx::max(vx::to_f64(a), vx::to_f64(b))[5]));
  }
  CHECK(one(vx::max(all_lanes(-2.f), all_lanes(3.f))) == 3);
  const vx::f64 zeros = {}, negative = -zeros;  // For equal values the second.
  CHECK(std::signbit(vx::max(zeros, negative)[9]));
  CHECK_FALSE(std::signbit(vx::min(negative, zeros)[9]));
  CHECK(vx::max(vx::splat(long_min), vx::i64{} - 1)[15] == -1);
  CHECK(vx::min(vx::splat(long_min), vx::i64{} - 1)[15] == long_min);
  CHECK(one(vx::sign(all_lanes(-1e-45f))) == -1);
  CHECK(one(vx::sign(all_lanes(-0.f))) == 0);
  CHECK(vx::sign(vx::splat(-7L))[2] == -1);
  CHECK(vx::abs(vx::splat(int_min))[0] == int_min);
  CHECK(vx::all(vx::isnan(all_lanes(nan_f))));
  CHECK_FALSE(vx::any(vx::isfinite(all_lanes(-inf))));
  CHECK(vx::mask_bits(vx::first_lanes(5)) == 31);
  CHECK(vx::mask_bits(vx::lt(vx::to_f64(vx::first_lanes(3)), vx::f64{})) == 7);
  CHECK(vx::where(vx::first_lanes(3), vx::splat(1.5), vx::splat(2.5))[3] == 2.5);
  CHECK(vx::where(vx::first_lanes(4), vx::splat(1L << 40), vx::splat(3L))[3] == 1L << 40);
}

TEST_CASE("vec: float64 goes to libm") {
  for (double x : {-0.0, 0.3, -2.5, 700.0, 1e-310}) {
    vx::f64 v = vx::splat(x);
    CHECK(same_bits(vx::exp(v)[7], std::exp(x)));
    CHECK(same_bits(vx::erf(v)[7], std::erf(x)));
    CHECK(same_bits(vx::round(v)[7], std::nearbyint(x)));
    CHECK(vx::sigmoid(v)[7] == doctest::Approx(1 / (1 + std::exp(-x))));
    CHECK(same_bits(vx::pow(vx::abs(v), v)[1], std::pow(std::fabs(x), x)));
  }
}

TEST_CASE("vec: remainder and floor_div have Python's signs and never trap") {
  auto rem = [](float a, float b) { return one(vx::remainder(all_lanes(a), all_lanes(b))); };
  CHECK(rem(-7, 3) == 2);
  CHECK(rem(7, -3) == -2);
  CHECK(rem(-1, inf) == inf);
  CHECK(rem(5, inf) == 5);
  CHECK(std::isnan(rem(5, 0)));
  CHECK(one(vx::floor_div(all_lanes(-7.f), all_lanes(2.f))) == -4);
  CHECK(one(vx::floor_div(all_lanes(7.f), all_lanes(0.f))) == inf);
  CHECK(vx::remainder(vx::splat(-7), vx::splat(3))[0] == 2);
  CHECK(vx::floor_div(vx::splat(-7), vx::splat(3))[0] == -3);
  CHECK(vx::floor_div(vx::splat(5), vx::splat(0))[0] == 0);
  CHECK(vx::remainder(vx::splat(5L), vx::splat(0L))[0] == 0);
  CHECK(vx::floor_div(vx::splat(long_min), vx::splat(-1L))[0] == long_min);
  CHECK(vx::floor_div(vx::splat(int_min), vx::splat(-1))[0] == int_min);
  std::uint64_t state = 5;
  int wrong = 0;
  for (int block = 0; block < 5000; ++block) {
    float x[16], y[16], z[16];
    for (int k = 0; k < 16; ++k) {
      x[k] = from_bits(next_random(state));
      y[k] = block % 2 ? from_bits(next_random(state))
                       : x[k] * static_cast<float>(next_random(state) % 4096) * 0x1p-14f;
    }
    vx::store(z, vx::fmod(vx::load(x), vx::load(y)));
    for (int k = 0; k < 16; ++k) {
      float want = std::fmod(x[k], y[k]);
      wrong += !same_bits(z[k], want) && !(std::isnan(z[k]) && std::isnan(want));
    }
  }
  CHECK(wrong == 0);
}

template <class T> static void check_tails() {
  for (int n = 0; n <= 16; ++n) {
    CAPTURE(n);
    T from[20], to[20];
    for (int k = 0; k < 20; ++k) {
      from[k] = static_cast<T>(k + 1);
      to[k] = 99;
    }
    const auto v = vx::load_n(from + 1, n);
    vx::store_n(to + 1, v, n);
    for (int k = 0; k < 20; ++k) CHECK(to[k] == (k > 0 && k <= n ? from[k] : T{99}));
    for (int k = 0; k < 16; ++k) CHECK(v[k] == (k < n ? from[k + 1] : T{0}));
  }
}

TEST_CASE("vec: tails and strides touch what they should") {
  check_tails<unsigned char>();
  check_tails<unsigned short>();
  check_tails<int>();
  check_tails<long>();
  check_tails<float>();
  check_tails<double>();
  std::vector<float> from(64);
  for (int i = 0; i < 64; ++i) from[static_cast<std::size_t>(i)] = static_cast<float>(i + 1);
  for (int n = 0; n <= 16; ++n) {
    vx::f32 v = vx::load_n(from.data() + 1, n);
    vx::f64 w = vx::load_n(std::vector<double>(16, 2.0).data(), n);
    float to[17];
    for (float& x : to) x = -1;
    vx::store_n(to, v, n);
    for (int i = 0; i < 17; ++i) CHECK(to[i] == (i < n ? static_cast<float>(i + 2) : -1));
    for (int i = 0; i < 16; ++i) CHECK(lane(v, i) == (i < n ? static_cast<float>(i + 2) : 0));
    for (int i = 0; i < 16; ++i) CHECK(lane(w, i) == (i < n ? 2.0 : 0.0));
  }
  float spread[48] = {};
  vx::store_strided(spread, vx::load_strided(from.data(), 4), 3);
  for (int i = 0; i < 16; ++i) CHECK(spread[3 * i] == static_cast<float>(4 * i + 1));
  alignas(64) float aligned[16];
  vx::store_nt(aligned, vx::load(from.data()));
  vx::fence_nt();
  CHECK(aligned[15] == 16);
}

TEST_CASE("vec: conversions between numbers truncate, and are defined out of range") {
  CHECK(vx::to_i32(all_lanes(-2.9f))[0] == -2);
  CHECK(vx::to_i64(vx::splat(-3e9))[0] == -3000000000L);
  for (float x : {nan_f, inf, -inf, 3e9f, 0x1p31f, -0x1p31f})
    CHECK(vx::to_i32(all_lanes(x))[9] == int_min);
  CHECK(vx::to_i32(vx::splat(2147483647.9))[0] == 2147483647);
  CHECK(vx::to_i32(vx::splat(-2147483648.9))[0] == int_min);
  CHECK(vx::to_i64(all_lanes(nan_f))[0] == long_min);
  CHECK(vx::to_i64(vx::splat(0x1p63))[0] == long_min);
  CHECK(vx::to_f32(vx::splat((1L << 54) + (1L << 30) + 1))[0] == 0x1p54f + 0x1p31f);
  CHECK(vx::to_f32(vx::splat(1 + 0x1p-24))[0] == 1);
  CHECK(vx::i32_to_u8(vx::splat(-1))[0] == 255);
  CHECK(vx::u8_to_i32(vx::i32_to_u8(vx::splat(300)))[0] == 44);
  CHECK(vx::b16_to_bool(vx::to_b16(all_lanes(nan_f)))[0] == 1);
  CHECK(vx::mask_to_f32(vx::bool_to_b16(vx::splat(static_cast<unsigned char>(1))))[0] == 1);
}

TEST_CASE("vec: bfloat16 and half, exhaustively") {
  int wrong = 0;
  for (std::uint32_t h = 0; h < 65536; ++h) {
    vx::u16 v = vx::splat(static_cast<unsigned short>(h));
    float b = vx::bf16_to_f32(v)[2], f = vx::f16_to_f32(v)[2];
    int e = static_cast<int>(h >> 10 & 31), m = static_cast<int>(h & 1023);
    float value = e == 31  ? (m ? nan_f : inf)
                  : e == 0 ? std::ldexp(static_cast<float>(m), -24)
                           : std::ldexp(static_cast<float>(m + 1024), e - 25);
    if (h & 0x8000) value = -value;
    wrong += std::isnan(value) ? !std::isnan(f) : !same_bits(f, value);
    unsigned back_b = vx::f32_to_bf16(vx::splat(b))[2], back_f = vx::f32_to_f16(vx::splat(f))[2];
    wrong += back_b != (std::isnan(b) ? h | 0x40 : h);  // a NaN becomes quiet
    wrong += back_f != (std::isnan(f) ? h | 0x200 : h);
  }
  CHECK(wrong == 0);
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 1021) {
    float x = from_bits(static_cast<std::uint32_t>(bits));
    // Half of the samples are next to a tie, where rounding is decided.
    if (bits & 1) x = from_bits(static_cast<std::uint32_t>(bits & ~0xfffull) + (bits >> 4) % 3 - 1);
    float b = one(vx::round_bf16(vx::splat(x))), f = one(vx::round_f16(vx::splat(x)));
    if (std::isnan(x)) {
      wrong += !std::isnan(b) + !std::isnan(f);
    } else {
      wrong += !same_bits(b, round_to(x, 8, -133, inf));
      wrong += !same_bits(f, round_to(x, 11, -24, 65520));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("vec: reduce pairs lane i with i + 8, 4, 2, 1") {
  float x[16];
  std::uint64_t state = 9;
  for (float& v : x) v = static_cast<float>(next_random(state)) * 0x1p-20f;
  float tree[16];
  std::memcpy(tree, x, sizeof x);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) tree[i] += tree[i + half];
  auto add = [](auto a, auto b) { return a + b; };
  CHECK(same_bits(vx::reduce(vx::load(x), add), tree[0]));
  CHECK(vx::reduce(vx::splat(3L), add) == 48);
  CHECK(vx::reduce(vx::to_f64(vx::load(x)), [](auto a, auto b) { return vx::max(a, b); }) ==
        *std::max_element(x, x + 16));
}

TEST_CASE("vec: a vector split into registers and joined again is the same, in memory too") {
  const auto check = [](auto v) {
    using T = vx::Element<decltype(v)>;
    for (int i = 0; i < vx::lanes; ++i) v[i] = static_cast<T>(3 * i + 1);
    vx::Parts<decltype(v)> parts = v;
    for (int turn = 0; turn < 3; ++turn) parts = parts.get() + v;
    T to[vx::lanes];
    parts.store(to);
    for (int i = 0; i < vx::lanes; ++i) {
      CHECK(parts.get()[i] == 4 * v[i]);
      CHECK(to[i] == 4 * v[i]);
    }
  };
  check(vx::f32{});
  check(vx::f64{});
  check(vx::i32{});
  check(vx::i64{});
  check(vx::u8{});
}
