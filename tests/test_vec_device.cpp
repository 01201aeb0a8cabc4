// The device prelude, compiled for the host: every function gives the bits of the CPU's.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "backends/cpu/host_compiler.h"
#include "backends/cuda/kernels.h"
#include "ops/vocabulary/vec_random.h"
#include "tests/temp_dir.h"

namespace {

namespace vx = brrr::vx;

const char keywords[] =
    "#define BRRR_EMULATED 1\n"
    "#define __device__\n"
    "#define __forceinline__ inline __attribute__((always_inline))\n";

template <class T> const char* type_name() {
  if (std::is_same_v<T, float>) return "float";
  if (std::is_same_v<T, double>) return "double";
  if (std::is_same_v<T, int>) return "int";
  if (std::is_same_v<T, long>) return "long";
  return std::is_same_v<T, unsigned short> ? "unsigned short" : "unsigned char";
}

// --- inputs --------------------------------------------------------------------------------------

std::uint64_t next_random(std::uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return state ^ state >> 29;
}

template <class T> std::vector<T> specials() {
  using L = std::numeric_limits<T>;
  std::vector<T> r;
  if constexpr (std::is_floating_point_v<T>) {
    for (double x : {0.0,
                     0x1p-149,
                     0x1p-127,
                     0x1p-126,
                     1e-30,
                     1e-5,
                     0.25,
                     0.3,
                     0.5,
                     1.0,
                     1.5,
                     2.0,
                     2.5,
                     3.0,
                     3.98,
                     7.5,
                     88.7,
                     89.0,
                     104.0,
                     255.0,
                     0x1p17,
                     0x1p17 + 0.5,
                     0x1p23,
                     0x1p24,
                     0x1p31,
                     0x1p32,
                     0x1p63,
                     1e30,
                     65504.0,
                     65520.0,
                     3.4028234663852886e38}) {
      r.insert(r.end(), {static_cast<T>(x), static_cast<T>(-x)});
    }
    r.insert(r.end(), {L::infinity(), -L::infinity(), L::quiet_NaN()});
  } else {
    for (T x : {0, 1, 2, 3, 7, 127}) r.insert(r.end(), {x, static_cast<T>(-x)});
    for (T x : {T(0), T(1), T(2)}) {
      r.insert(r.end(), {static_cast<T>(L::min() + x), static_cast<T>(L::max() - x)});
    }
  }
  return r;
}

// Every pair of special values, then values of any bits, each with another of any bits and with one
// of similar size; padded to a multiple of 16.
template <class T> struct Pairs {
  std::vector<T> x, y;
  Pairs() {
    for (T a : specials<T>()) {
      for (T b : specials<T>()) add(a, b);
    }
    std::uint64_t state = 1;
    for (int i = 0; i < 50000; ++i) {
      const std::uint64_t a = next_random(state), b = next_random(state);
      const T p = from_bits(a), q = from_bits(b);
      add(p, q);
      add(p, static_cast<T>(p / (static_cast<T>(b % 1000) + T(1))));
      add(static_cast<T>(static_cast<long>(a) >> 40), static_cast<T>(static_cast<long>(b) >> 50));
    }
    while (x.size() % 16 != 0) add(T(1), T(2));
  }
  static T from_bits(std::uint64_t bits) {
    T r;
    std::memcpy(&r, &bits, sizeof r);
    return r;
  }
  void add(T a, T b) {
    x.push_back(a);
    y.push_back(b);
  }
};

// One instance of each type, shared by all rows.
template <class T> const Pairs<T>& pairs() {
  static const Pairs<T> r;
  return r;
}

// All values of a small type, else the first of each pair; for four bytes every 997th pattern too.
template <class T> std::vector<T> make_dense() {
  std::vector<T> r;
  if constexpr (sizeof(T) > 2) r = pairs<T>().x;
  const std::uint64_t end = sizeof(T) > 4 ? 0 : 1ull << 8 * sizeof(T);
  const std::uint64_t step = sizeof(T) == 4 ? 997 : 1;
  for (std::uint64_t bits = 0; bits < end; bits += step) r.push_back(Pairs<T>::from_bits(bits));
  while (r.size() % 16 != 0) r.push_back(T(1));
  return r;
}

template <class T> const std::vector<T>& dense() {
  static const std::vector<T> r = make_dense<T>();
  return r;
}

// --- rows: one text for both ---------------------------------------------------------------------

struct Row {
  std::string text, in, out;  // a formula of x and y, and the types of its elements
  bool (*equal)(void* compiled);
};

template <class T> bool same(const T& a, const T& b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) && std::isnan(b)) return true;  // sign and payload of a NaN are ignored
  }
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class In, class Out, class F> bool equal(void* compiled, bool two, F f) {
  const std::vector<In>&x = two ? pairs<In>().x : dense<In>(), &y = two ? pairs<In>().y : x;
  std::vector<Out> want(x.size()), got(x.size());
  for (size_t i = 0; i < x.size(); i += 16)
    vx::store(&want[i], f(vx::load(&x[i]), vx::load(&y[i])));
  using Compiled = void (*)(const In*, const In*, Out*, long);
  reinterpret_cast<Compiled>(compiled)(x.data(), y.data(), got.data(), static_cast<long>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (same(want[i], got[i])) continue;
    MESSAGE("x " << +x[i] << ", y " << +y[i] << ": CPU " << +want[i] << ", device " << +got[i]);
    return false;
  }
  return true;
}

#define ROW(In, Out, two, formula)                                                 \
  Row {                                                                            \
#formula, type_name<In>(), type_name<Out>(), [](void* compiled) {                \
      return equal<In, Out>(compiled, two, []([[maybe_unused]] auto x, [[maybe_unused]] auto y) { \
        using namespace brrr::vx;                                                    \
        return formula;                                                              \
      });                                                                            \
    } \
  }
#define ONE(T, formula) ROW(T, T, false, formula)
#define TWO(T, formula) ROW(T, T, true, formula)
#define FLOATING(T)                                                                             \
  ONE(T, exp(x)), ONE(T, expm1(x)), ONE(T, log(x)), ONE(T, log1p(x)), ONE(T, sqrt(x)),          \
      ONE(T, rsqrt(x)), ONE(T, sin(x)), ONE(T, cos(x)), ONE(T, tanh(x)), ONE(T, sigmoid(x)),    \
      ONE(T, erf(x)), ONE(T, normal_cdf(x)), ONE(T, -x), TWO(T, pow(x, y)), TWO(T, fmod(x, y)), \
      TWO(T, x / y), TWO(T, fma(x, y, x)), ROW(T, int, false, isnan(x)),                        \
      ROW(T, int, false, isfinite(x))
#define NUMBER(T)                                                                                  \
  ONE(T, floor(x)), ONE(T, ceil(x)), ONE(T, trunc(x)), ONE(T, round(x)), ONE(T, abs(x)),           \
      ONE(T, sign(x)), TWO(T, min(x, y)), TWO(T, max(x, y)), TWO(T, remainder(x, y)),              \
      TWO(T, floor_div(x, y)), TWO(T, where(lt(x, y), x, y)), ROW(T, int, true, le(x, y)),         \
      ROW(T, int, true, ge(x, y)), ROW(T, int, true, gt(x, y)), ROW(T, int, true, eq(x, y)),       \
      ROW(T, int, true, ne(x, y)), ROW(T, float, false, to_f32(x)), ROW(T, int, false, to_i32(x)), \
      ROW(T, long, false, to_i64(x)), ROW(T, double, false, to_f64(x)),                            \
      ROW(T, float, false, mask_to_f32(to_b16(x))), ROW(T, double, false, mask_to_f64(to_b16(x))), \
      ROW(T, int, false, mask_to_i32(to_b16(x))), ROW(T, long, false, mask_to_i64(to_b16(x)))

// The wrapping + - * of integers have no row: they may not overflow in vectors of signed lanes.
std::vector<Row> rows() {
  return {FLOATING(float),
          FLOATING(double),
          NUMBER(float),
          NUMBER(double),
          NUMBER(int),
          NUMBER(long),
          TWO(float, x + y),
          TWO(float, x - y),
          TWO(float, x* y),
          ONE(float, fma(x, 0.5f, 3.0f)),
          ONE(float, fma(x, 0.5f, x)),
          ONE(float, fma(x, x, 3.0f)),
          ONE(float, round_bf16(x)),
          ONE(float, round_f16(x)),
          ONE(float, uniform01((u32)x)),
          ROW(float, unsigned short, false, f32_to_bf16(x)),
          ROW(float, unsigned short, false, f32_to_f16(x)),
          ROW(unsigned short, float, false, bf16_to_f32(x)),
          ROW(unsigned short, float, false, f16_to_f32(x)),
          ROW(unsigned char, int, false, u8_to_i32(x)),
          ROW(unsigned char, int, false, bool_to_b16(x)),
          ROW(int, unsigned char, false, i32_to_u8(x)),
          ROW(int, unsigned char, true, b16_to_bool(ne(x, y))),
          ONE(int, x << 3 ^ 5),
          ONE(int, x >> 3 | 4),
          ONE(int, ~x & 0xff),
          ONE(long, (x >> 3) & ~7L)};
}

// --- the compiled prelude ------------------------------------------------------------------------

struct Library {
  brrr::test::TemporaryDirectory dir;
  void* handle = nullptr;
  explicit Library(const std::string& kernels) {
    const std::string source = dir.file("device.cpp"), object = dir.file("device.so");
    brrr::test::write(source, keywords + brrr::cuda::program_of(kernels));
    const auto result = brrr::cpu::compile_shared(brrr::cpu::find_host_compiler(), source, object,
                                                  dir.path.string());
    INFO(result.output);
    REQUIRE(result.end == brrr::cpu::ProcessResult::finished);
    REQUIRE(result.status == 0);
    handle = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(handle);
  }
  ~Library() {
    if (handle) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* symbol(const std::string& name) const { return dlsym(handle, name.c_str()); }
};

}  // namespace

TEST_CASE("device prelude: every function gives the bits of the CPU's") {
  const std::vector<Row> all = rows();
  std::string text = "using namespace brrr::vx;\n";
  for (size_t i = 0; i < all.size(); ++i) {
    const Row& r = all[i];
    text += "extern \"C\" void row_" + std::to_string(i) + "(const " + r.in + "* a, const " + r.in +
            "* b, " + r.out + "* out, long n) {\n  for (long i = 0; i < n; ++i) {\n" +
            "    [[maybe_unused]] const auto x = load(a + i), y = load(b + i);\n" +
            "    store(out + i, " + r.text + ");\n  }\n}\n";
  }
  const Library library(text);
  for (size_t i = 0; i < all.size(); ++i) {
    INFO(all[i].text << " of " << all[i].in);
    CHECK(all[i].equal(library.symbol("row_" + std::to_string(i))));
  }
}

TEST_CASE("device prelude: integers wrap around") {
  const Library library(
      "using namespace brrr::vx;\n"
      "extern \"C\" int wraps() {\n"
      "  const i32 big = splat(0x7fffffff);\n"
      "  const i64 large = splat(0x7fffffffffffffffL);\n"
      "  i32 x = big;\n"
      "  x += 1;\n"
      "  return x[0] == -0x7fffffff - 1 && (big * big)[0] == 1 && (-x)[0] == x[0] &&\n"
      "         (x - 1)[0] == big[0] && (large + 1L)[0] == -0x7fffffffffffffffL - 1 &&\n"
      "         (large * large)[0] == 1;\n"
      "}\n");
  CHECK(reinterpret_cast<int (*)()>(library.symbol("wraps"))() == 1);
}

TEST_CASE("device prelude: random words and normals are those of the CPU") {
  const Library library(
      "using namespace brrr::vx;\n"
      "typedef unsigned long ul;\n"
      "extern \"C\" unsigned words(ul i, ul seed, ul offset) {\n"
      "  return (unsigned)draw(i64(seed), i64(offset), i64(i))[0];\n"
      "}\n"
      "extern \"C\" float normal(ul i, ul seed, ul offset) {\n"
      "  return draw_normal(i64(seed), i64(offset), i64(i))[0];\n"
      "}\n");
  using Word = unsigned (*)(unsigned long, unsigned long, unsigned long);
  using Normal = float (*)(unsigned long, unsigned long, unsigned long);
  const auto word = reinterpret_cast<Word>(library.symbol("words"));
  const auto normal = reinterpret_cast<Normal>(library.symbol("normal"));
  size_t different = 0;
  for (unsigned long seed : {0ul, 1234ul, 0x123456789abcdef0ul}) {
    for (unsigned long offset : {0ul, 7ul, 0xfedcba9876543210ul}) {
      for (unsigned long start : {0ul, 1ul << 36, ~0ul << 16}) {
        for (unsigned long i = start; i < start + 4096; i += 16) {
          const vx::u32 w = vx::philox16(i, seed, offset);
          const vx::f32 n = vx::normal16(i, seed, offset);
          for (unsigned k = 0; k < 16; ++k) {
            different += word(i + k, seed, offset) != w[k];
            different += !same<float>(normal(i + k, seed, offset), n[k]);
          }
        }
      }
    }
  }
  CHECK(different == 0);
}
