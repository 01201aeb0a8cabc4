#pragma once

// The few vector operations that measuring loops and hand-written baselines need. They use explicit
// vector types, so as to be equally fast at -O2 and -O3: g++ 12 hardly vectorises loops at -O2.

#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace brrr::cpu::simd {

#if defined(__AVX512F__)
inline constexpr std::size_t width = 16;
#elif defined(__AVX__)
inline constexpr std::size_t width = 8;
#else
inline constexpr std::size_t width = 4;
#endif

typedef float Vec __attribute__((vector_size(width * sizeof(float))));
typedef int IntVec __attribute__((vector_size(width * sizeof(int))));

// memcpy of a vector is one unaligned move; it also keeps the compiler's aliasing rules.
inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

inline Vec broadcast(float x) { return Vec{} + x; }

// 0 where x <= 0, else v; so a NaN in x passes, as relu's must.
inline Vec zero_where_nonpositive(Vec x, Vec v) { return (Vec)((IntVec)v & ~(IntVec)(x <= Vec{})); }

inline Vec sqrt(Vec x) {
#if defined(__AVX512F__)
  // The masked form, because g++ 12 warns of an uninitialised variable inside the plain one.
  return (Vec)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX__)
  return (Vec)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
  return (Vec)_mm_sqrt_ps((__m128)x);
#else
  for (std::size_t i = 0; i < width; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// a * b + c in one rounding where the machine has it. Written out, because the project is built
// with -ffp-contract=off.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

typedef double DoubleVec __attribute__((vector_size(width * sizeof(float))));
inline DoubleVec fma(DoubleVec a, DoubleVec b, DoubleVec c) {
#if defined(__AVX512F__)
  return (DoubleVec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
  return (DoubleVec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

// A store that goes past the caches; p is aligned to the vector. A plain store where there is none.
inline void store_past_caches(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(p, (__m128)v);
#else
  store(p, v);
#endif
}

// Orders the stores past the caches before anything that follows.
inline void store_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace brrr::cpu::simd
