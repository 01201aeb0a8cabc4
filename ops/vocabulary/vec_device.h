// The device prelude, parts 1 and 2: what vec.h and vec_hw.h are for the CPU, for one thread of a
// GPU: vectors of one lane, memory access, comparisons, fma and rounding.
//
// The device prelude is this file, the portable parts vec_convert.h to vec_lanes.h,
// vec_device_random.h and vec_draw.h, embedded in this order. The program is compiled by NVRTC, or,
// where BRRR_EMULATED is defined, by a C++ compiler of the host, after a text that defines CUDA's
// keywords. Neither gives it a header.
#ifndef BRRR_OPS_VEC_DEVICE_H
#define BRRR_OPS_VEC_DEVICE_H

#define BRRR_VX __device__ static __forceinline__ __attribute__((unused))
// A table of sixteen floats, for lookup(): in global memory, because threads read it at different
// indices, for which constant memory is slow. It fits one cache line.
#define BRRR_VX_TABLE static const Table
// An out-of-line function that is hardly ever called.
#define BRRR_VX_COLD __device__ static __attribute__((noinline, unused))
// A function of the C library. The names of CUDA's built-in functions are those of C.
#ifdef BRRR_EMULATED
#define BRRR_VX_LIBM(name) __builtin_##name
#else
#define BRRR_VX_LIBM(name) ::name
#endif

namespace brrr::vx {

constexpr int lanes = 1;

// The type that + - * run in: integers wrap around, which only unsigned ones may.
template <class T> struct WrapOf { using type = T; };
template <> struct WrapOf<int> { using type = unsigned; };
template <> struct WrapOf<long> { using type = unsigned long; };
template <class T> using Wrap = typename WrapOf<T>::type;

// Negates floats by an instruction that NVRTC leaves in place: it would move the sign into a select
// between constants, and ptxas (as of 13.0) turns one between -0 and 1, or -1, into one between 0
// and that.
template <class T> BRRR_VX T minus(T x) { return -x; }
#ifndef BRRR_EMULATED
BRRR_VX float minus(float x) {
  float y;
  asm("neg.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// A vector of one lane. As with vectors of g++, a C cast between types of one size keeps the bits,
// and an operand of an operator may be a plain scalar.
template <class T> struct Lane {
  T v;

  Lane() = default;
  __device__ __forceinline__ explicit constexpr Lane(T x) : v(x) {}
  template <class U>
  __device__ __forceinline__ explicit constexpr Lane(Lane<U> x) : v(__builtin_bit_cast(T, x.v)) {}
  __device__ __forceinline__ T& operator[](int) { return v; }
  __device__ __forceinline__ const T& operator[](int) const { return v; }

// Computes in W.
#define BRRR_VX_OPERATOR(sign, W)                                                              \
  __device__ __forceinline__ friend Lane operator sign(Lane x, Lane y) {                       \
    return Lane(static_cast<T>(static_cast<W>(x.v) sign static_cast<W>(y.v)));                 \
  }                                                                                            \
  __device__ __forceinline__ friend Lane operator sign(Lane x, T y) { return x sign Lane(y); } \
  __device__ __forceinline__ friend Lane operator sign(T x, Lane y) { return Lane(x) sign y; } \
  __device__ __forceinline__ Lane& operator sign##=(Lane y) { return *this = *this sign y; }   \
  __device__ __forceinline__ Lane& operator sign##=(T y) { return *this = *this sign y; }
  BRRR_VX_OPERATOR(+, Wrap<T>)
  BRRR_VX_OPERATOR(-, Wrap<T>)
  BRRR_VX_OPERATOR(*, Wrap<T>)
  BRRR_VX_OPERATOR(/, T)
  BRRR_VX_OPERATOR(&, T)
  BRRR_VX_OPERATOR(|, T)
  BRRR_VX_OPERATOR(^, T)
  BRRR_VX_OPERATOR(<<, Wrap<T>)
  BRRR_VX_OPERATOR(>>, T)
#undef BRRR_VX_OPERATOR
  __device__ __forceinline__ friend Lane operator-(Lane x) {
    return Lane(static_cast<T>(minus(static_cast<Wrap<T>>(x.v))));
  }
  __device__ __forceinline__ friend Lane operator~(Lane x) { return Lane(static_cast<T>(~x.v)); }
};

typedef Lane<float> f32;
typedef Lane<double> f64;
typedef Lane<int> i32;
typedef Lane<long> i64;
typedef Lane<unsigned> u32;
typedef Lane<unsigned long> u64;
typedef Lane<unsigned short> u16;
typedef Lane<unsigned char> u8;
typedef i32 b16;  // a mask: 0 or -1, for every element type

// The counterpart of vec.h's Parts, which splits vectors of several registers.
template <class V> struct Parts {
  V v;
  __device__ __forceinline__ Parts(V x) : v(x) {}  // NOLINT(google-explicit-constructor)
  __device__ __forceinline__ V get() const { return v; }
};

// --- memory --------------------------------------------------------------------------------------

template <class T> BRRR_VX Lane<T> load(const T* p) { return Lane<T>(*p); }
template <class T> BRRR_VX void store(T* p, Lane<T> x) { *p = x.v; }
template <class T> BRRR_VX Lane<T> splat(T x) { return Lane<T>(x); }

// N contiguous elements, at most 16 bytes: memory is fastest if a thread moves all 16 at once.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
  static_assert(sizeof(T) * N <= 16, "a thread moves at most 16 bytes at once");
  T v[N];
};

// --- comparisons and selection -------------------------------------------------------------------

template <class V> BRRR_VX b16 lt(V a, V b) { return b16(-(a.v < b.v)); }
template <class V> BRRR_VX b16 le(V a, V b) { return b16(-(a.v <= b.v)); }
template <class V> BRRR_VX b16 gt(V a, V b) { return b16(-(a.v > b.v)); }
template <class V> BRRR_VX b16 ge(V a, V b) { return b16(-(a.v >= b.v)); }
template <class V> BRRR_VX b16 eq(V a, V b) { return b16(-(a.v == b.v)); }
template <class V> BRRR_VX b16 ne(V a, V b) { return b16(-(a.v != b.v)); }
template <class V> BRRR_VX V where(b16 m, V a, V b) { return m.v != 0 ? a : b; }

BRRR_VX bool any(b16 m) { return m.v != 0; }
BRRR_VX bool all(b16 m) { return m.v != 0; }

// --- what the hardware does itself ---------------------------------------------------------------

constexpr float infinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float not_a_number = __builtin_bit_cast(float, 0x7fc00000);

template <class To, class From> BRRR_VX To convert(From x) {
  return To(static_cast<decltype(To::v)>(x.v));
}

BRRR_VX i32 u8_to_i32(u8 x) { return convert<i32>(x); }
BRRR_VX u32 widen(u16 x) { return convert<u32>(x); }
BRRR_VX u8 i32_to_u8(i32 x) { return convert<u8>(x & 255); }

#ifndef BRRR_EMULATED
// 16-bit floats, rounded to nearest even; a NaN loses its payload.
#define BRRR_VX_CONVERT(name, To, to, From, from, instruction) \
  BRRR_VX To name(From x) {                                    \
    To y;                                                      \
    asm(instruction " %0, %1;" : "=" to(y.v) : from(x.v));     \
    return y;                                                  \
  }
#define BRRR_VX_BFLOAT
BRRR_VX_CONVERT(f32_to_bf16, u16, "h", f32, "f", "cvt.rn.bf16.f32")
#define BRRR_VX_HALF
BRRR_VX_CONVERT(f32_to_f16, u16, "h", f32, "f", "cvt.rn.f16.f32")
BRRR_VX_CONVERT(f16_to_f32, f32, "f", u16, "h", "cvt.f32.f16")
#undef BRRR_VX_CONVERT
#endif

struct alignas(64) Table {
  float v[16];
};
BRRR_VX f32 lookup(const Table& table, i32 k) { return f32(table.v[k.v & 15]); }

// Correctly rounded a * b + c: the only contraction, always explicit.
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

// p * 2^i for integral |i| <= 160, rounded once: a result may be denormal or overflow. An addition
// puts i into the low bits, shifts drop the others: a conversion has an eighth of its throughput.
BRRR_VX f32 scale(f32 p, f32 i) {
  i32 n = (i32)(i + 0x1.8p+23f), half = n >> 1;
  return p * (f32)((half << 23) + 0x3f800000) * (f32)(((n - half) << 23) + 0x3f800000);
}
// The same for i <= 60.
BRRR_VX f32 scale_down(f32 p, f32 i) {
  return p * (f32)(((i32)(i + 0x1.8p+23f) << 23) + 0x5f800000) * 0x1p-64f;
}
// For exponentials that are zero, x < -104: underflow takes no longer here.
BRRR_VX f32 exp_operand(f32 x) { return at_least(x, -104.0f); }
BRRR_VX f32 exp_result(f32, f32 p, f32 i) { return scale(p, i); }
BRRR_VX f32 falling_operand(f32 x) { return exp_operand(x); }
BRRR_VX f32 falling_result(f32, f32 p, f32 i) { return scale_down(p, i); }

// n / d as sigmoid and tanh need it: n is 2, 1, or e <= 1 where d is 1 + e. General division takes
// three times the instructions, most of them to classify its operands. All 839 million pairs that
// occur give the bits of the division, even if the reciprocal is off by one unit in the last place:
// where d has a mantissa of ones, half of the correction would be lost to a tie without the term
// that is added to it.
BRRR_VX f32 quotient(f32 n, f32 d) {
#ifdef BRRR_EMULATED
  return n / d;
#else
  float rough;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(rough) : "f"(d.v));
  f32 r(rough);
  r = fma(fma(-d, r, f32(1.0f)) + 0x1p-44f, r, r);
  const f32 q = n * r;
  return fma(fma(-d, q, n), r, q);
#endif
}

BRRR_VX bool any_above(f32 x, float limit) { return BRRR_VX_LIBM(fabsf)(x.v) > limit; }

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_DEVICE_H
