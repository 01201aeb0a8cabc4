// The device prelude, part 1: what vec.h gives the CPU, for one thread of a GPU: vectors of one
// lane, memory access, comparisons.
//
// The device prelude is this file, vec_device_hw.h, the portable parts vec_convert.h to
// vec_lanes.h, and vec_device_random.h, embedded in this order. The program is compiled by NVRTC,
// or, where BRRR_EMULATED is defined, by a C++ compiler of the host, after a text that defines
// CUDA's keywords. Neither gives it a header.
#ifndef BRRR_OPS_VEC_DEVICE_H
#define BRRR_OPS_VEC_DEVICE_H

#define BRRR_VX __device__ static __forceinline__ __attribute__((unused))

namespace brrr::vx {

constexpr int lanes = 1;

// The type that + - * run in: integers wrap around, which only unsigned ones may.
template <class T> struct WrapOf { using type = T; };
template <> struct WrapOf<int> { using type = unsigned; };
template <> struct WrapOf<long> { using type = unsigned long; };
template <class T> using Wrap = typename WrapOf<T>::type;

// Of floats by an instruction that NVRTC leaves where it is: it would move the sign into a choice
// of constants, and ptxas (as of 13.0) makes of one between -0 and 1, or -1, one between 0 and
// that.
template <class T> BRRR_VX T minus(T x) { return -x; }
#ifndef BRRR_EMULATED
BRRR_VX float minus(float x) {
  float y;
  asm("neg.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// A vector of one lane. As with vectors of g++, a C cast between types of one size keeps the bits,
// and an operand of an operator may be a plain number.
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

// What vec.h needs for vectors of several registers.
template <class V> struct Parts {
  V v;
  __device__ __forceinline__ Parts(V x) : v(x) {}  // NOLINT(google-explicit-constructor)
  __device__ __forceinline__ V get() const { return v; }
};

// --- memory --------------------------------------------------------------------------------------

template <class T> BRRR_VX Lane<T> load(const T* p) { return Lane<T>(*p); }
template <class T> BRRR_VX void store(T* p, Lane<T> x) { *p = x.v; }
template <class T> BRRR_VX Lane<T> splat(T x) { return Lane<T>(x); }

// N elements side by side, at most 16 bytes: memory is fast when a thread moves all 16 at once.
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

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_DEVICE_H
