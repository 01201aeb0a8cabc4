// The CPU vector prelude, part 1: types, memory access, comparisons.
//
// This text needs no header: the library's kernels include it, and generated kernels contain it
// verbatim (then vec_hw.h to vec_rows.h, without #include lines), so both run the same definitions.
// Every vector has 16 logical lanes whatever the hardware, because the lane count fixes the order
// of a reduction. Only IEEE + - * / sqrt fma, integer and bit operations are used: results do not
// depend on -march or on the compiler (the payload and sign of a NaN excepted).
#ifndef BRRR_OPS_VEC_H
#define BRRR_OPS_VEC_H

#define BRRR_VX static inline __attribute__((always_inline, unused))

namespace brrr::vx {

constexpr int lanes = 16;

typedef float f32 __attribute__((vector_size(64)));
typedef double f64 __attribute__((vector_size(128)));
typedef int i32 __attribute__((vector_size(64)));
typedef long i64 __attribute__((vector_size(128)));
typedef unsigned u32 __attribute__((vector_size(64)));
typedef unsigned long u64 __attribute__((vector_size(128)));
typedef unsigned short u16 __attribute__((vector_size(32)));
typedef unsigned char u8 __attribute__((vector_size(16)));
typedef i32 b16;  // a mask: lanes are 0 or -1, for every element type

// The part of a vector that fits one register. g++ 12 splits comparisons and selections of wider
// vectors lane by lane, so those run part by part.
#if defined(__AVX512F__)
#define BRRR_VX_BYTES 64
#elif defined(__AVX2__)
#define BRRR_VX_BYTES 32
#else
#define BRRR_VX_BYTES 16
#endif

template <class T, int bytes = BRRR_VX_BYTES> struct Part {
  typedef T type __attribute__((vector_size(bytes)));
};
template <class T> using Vector = typename Part<T, lanes * sizeof(T)>::type;
typedef float f32x8 __attribute__((vector_size(32)));
typedef int i32x8 __attribute__((vector_size(32)));

// --- registers -----------------------------------------------------------------------------------

template <class V> auto first_element(V v) { return v[0]; }
template <class V> using Element = decltype(first_element(V{}));

// A vector as the registers that it takes, for values carried by a loop or live across a branch:
// where paths join, g++ 12 spills a vector of several registers, in smaller pieces than it reads
// back, so that every iteration waits for failed store forwarding.
template <class V, int parts = sizeof(V) <= BRRR_VX_BYTES ? 1 : sizeof(V) / BRRR_VX_BYTES>
struct Parts {
  using P = typename Part<Element<V>>::type;
  P p[parts];

  [[gnu::always_inline]] Parts(V v) {  // NOLINT(google-explicit-constructor)
    P q[parts];
    __builtin_memcpy(&q, &v, sizeof v);
    copy(q, p);
  }
  [[gnu::always_inline]] V get() const {
    P q[parts];
    copy(p, q);
    V v;
    __builtin_memcpy(&v, &q, sizeof v);
    return v;
  }
  template <int k = 0> [[gnu::always_inline]] void store(Element<V>* to) const {
    __builtin_memcpy(to + k * lanes / parts, &p[k], sizeof p[k]);
    if constexpr (k + 1 < parts) store<k + 1>(to);
  }

 private:
  template <int k = 0> [[gnu::always_inline]] static void copy(const P* from, P* to) {
    to[k] = from[k];
    if constexpr (k + 1 < parts) copy<k + 1>(from, to);
  }
};
template <class V> struct Parts<V, 1> {
  V v;
  Parts(V x) : v(x) {}  // NOLINT(google-explicit-constructor)
  V get() const { return v; }
  void store(Element<V>* to) const { __builtin_memcpy(to, &v, sizeof v); }
};

#if BRRR_VX_BYTES == 32
// One half of sixteen 4-byte lanes.
template <int which, class V> BRRR_VX f32x8 half(V v) {
  f32x8 h[2];
  __builtin_memcpy(&h, &v, sizeof v);
  return h[which];
}
// f of the lower halves, then f of the upper halves.
template <class F, class... V> BRRR_VX f32 by_halves(F f, V... v) {
  const f32x8 r[2] = {f(half<0>(v)...), f(half<1>(v)...)};
  f32 all;
  __builtin_memcpy(&all, &r, sizeof all);
  return all;
}
#endif

// --- memory --------------------------------------------------------------------------------------

// Lanes i < n of eight as a mask.
BRRR_VX i32x8 first_lanes8(int n) { return (i32x8{0, 1, 2, 3, 4, 5, 6, 7} < n); }

#ifdef __AVX512F__
// The first n of sixteen lanes. The asm hides them from g++ 12: given a constant mask whose other
// lanes are never read it loads a whole vector, beyond the end of memory.
BRRR_VX unsigned short first_bits(int n) {
  unsigned bits = (1u << n) - 1u;
  __asm__("" : "+r"(bits));
  return static_cast<unsigned short>(bits);
}
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
typedef char i8x16 __attribute__((vector_size(16)));
typedef short i16x16 __attribute__((vector_size(32)));
typedef long long i64x8 __attribute__((vector_size(64)));
#ifdef __clang__  // Its builtins take other pointer types.
typedef i8x16 Masked1;
typedef i16x16 Masked2;
#else
typedef char Masked1;
typedef short Masked2;
#endif
#endif

// The first n elements; the rest of the vector is zero and its memory is not touched.
template <class V, class T> BRRR_VX V load_first(const T* p, int n) {
  V r{};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(T) == 1 && sizeof(V) == 16) {
    return (V)__builtin_ia32_loaddquqi128_mask((const Masked1*)p, (i8x16)r, first_bits(n));
  } else if constexpr (sizeof(T) == 2 && sizeof(V) == 32) {
    return (V)__builtin_ia32_loaddquhi256_mask((const Masked2*)p, (i16x16)r, first_bits(n));
  } else if constexpr (sizeof(T) == 8 && sizeof(V) == 128) {
    const i64x8 part[] = {
        __builtin_ia32_loaddqudi512_mask((const long long*)p, i64x8{},
                                         static_cast<unsigned char>(first_bits(n))),
        __builtin_ia32_loaddqudi512_mask((const long long*)p + 8, i64x8{},
                                         static_cast<unsigned char>(first_bits(n) >> 8))};
    __builtin_memcpy(&r, &part, sizeof r);
    return r;
  }
#endif
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 4) {
    return (V)__builtin_ia32_loaddqusi512_mask((const int*)p, (i32)r, first_bits(n));
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {
    constexpr int parts = sizeof(V) / 32;
    i32x8 part[parts];
    for (int h = 0; h < parts; ++h) {
      part[h] = __builtin_ia32_maskloadd256((const i32x8*)p + h, first_lanes8(n - 8 * h));
    }
    __builtin_memcpy(&r, &part, sizeof r);
    return r;
  }
#endif
  if (n == static_cast<int>(sizeof(V) / sizeof(T))) {
    __builtin_memcpy(&r, p, sizeof r);
  } else {
    __builtin_memcpy(&r, p, static_cast<unsigned long>(n) * sizeof(T));
  }
  return r;
}

template <class V, class T> BRRR_VX void store_first(T* p, V v, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(T) == 1 && sizeof(V) == 16) {
    return __builtin_ia32_storedquqi128_mask((Masked1*)p, (i8x16)v, first_bits(n));
  } else if constexpr (sizeof(T) == 2 && sizeof(V) == 32) {
    return __builtin_ia32_storedquhi256_mask((Masked2*)p, (i16x16)v, first_bits(n));
  } else if constexpr (sizeof(T) == 8 && sizeof(V) == 128) {
    i64x8 part[2];
    __builtin_memcpy(&part, &v, sizeof v);
    __builtin_ia32_storedqudi512_mask((long long*)p, part[0],
                                      static_cast<unsigned char>(first_bits(n)));
    __builtin_ia32_storedqudi512_mask((long long*)p + 8, part[1],
                                      static_cast<unsigned char>(first_bits(n) >> 8));
    return;
  }
#endif
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 4) {
    return __builtin_ia32_storedqusi512_mask((int*)p, (i32)v, first_bits(n));
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {
    // A masked store takes twelve cycles, even if it writes all lanes.
    if (__builtin_constant_p(n == 1) && n == 1) return (void)__builtin_memcpy(p, &v, sizeof(T));
    constexpr int parts = sizeof(V) / 32;
    i32x8 part[parts];
    __builtin_memcpy(&part, &v, sizeof v);
    const auto store_some = [=](int h, int some) {
      __builtin_ia32_maskstored256((i32x8*)p + h, first_lanes8(some), part[h]);
    };
    if (n < 8) return store_some(0, n);
    __builtin_memcpy(p, &part[0], 32);
    if (parts == 1) return;
    if (n < 16) return store_some(parts - 1, n - 8);
    __builtin_memcpy(p + 8, &part[parts - 1], 32);
    return;
  }
#endif
  if (n == static_cast<int>(sizeof(V) / sizeof(T))) {
    __builtin_memcpy(p, &v, sizeof v);
  } else {
    __builtin_memcpy(p, &v, static_cast<unsigned long>(n) * sizeof(T));
  }
}

// Non-temporal store. p is aligned to 64 bytes; call fence_nt() before another thread reads.
template <class V, class T> BRRR_VX void store_nontemporal(T* p, V v) {
#if defined(__clang__)
  __builtin_nontemporal_store(v, (V*)p);
#else
#ifdef __AVX2__
  if constexpr (sizeof(V) >= BRRR_VX_BYTES) {
    Part<float>::type part[sizeof(V) / BRRR_VX_BYTES];
    __builtin_memcpy(&part, &v, sizeof v);
    for (unsigned i = 0; i < sizeof(V) / BRRR_VX_BYTES; ++i)
#ifdef __AVX512F__
      __builtin_ia32_movntps512((float*)p + 16 * i, part[i]);
#else
      __builtin_ia32_movntps256((float*)p + 8 * i, part[i]);
#endif
    return;
  }
#endif
  __builtin_memcpy(p, &v, sizeof v);
#endif
}

/// Prefetches a cache line into L1 or L2. The address need not be valid.
template <int level> BRRR_VX void prefetch(const void* p) { __builtin_prefetch(p, 0, 4 - level); }
BRRR_VX void fence_nt() {
#ifdef __SSE__
  __builtin_ia32_sfence();
#else
  __sync_synchronize();
#endif
}

template <class T> BRRR_VX Vector<T> load(const T* p) {
  Vector<T> r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
template <class T> BRRR_VX void store(T* p, Vector<T> v) { Parts<Vector<T>>(v).store(p); }
template <class T> BRRR_VX Vector<T> load_n(const T* p, int n) {
  return load_first<Vector<T>>(p, n);
}
template <class T> BRRR_VX void store_n(T* p, Vector<T> v, int n) { store_first(p, v, n); }
template <class T> BRRR_VX void store_nt(T* p, Vector<T> v) { store_nontemporal(p, v); }
template <class T> BRRR_VX auto splat(T x) {
  return Vector<T>{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
template <class T> BRRR_VX Vector<T> load_strided(const T* p, long s) {
  return Vector<T>{p[0],      p[s],      p[2 * s],  p[3 * s], p[4 * s],  p[5 * s],
                   p[6 * s],  p[7 * s],  p[8 * s],  p[9 * s], p[10 * s], p[11 * s],
                   p[12 * s], p[13 * s], p[14 * s], p[15 * s]};
}
template <class T> BRRR_VX Vector<T> load_strided_n(const T* p, long s, int n) {
  Vector<T> r{};
  for (int i = 0; i < n; ++i) r[i] = p[i * s];
  return r;
}
template <class T> BRRR_VX void store_strided_n(T* p, Vector<T> v, long s, int n) {
  for (int i = 0; i < n; ++i) p[i * s] = v[i];
}
template <class T> BRRR_VX void store_strided(T* p, Vector<T> v, long s) {
  store_strided_n(p, v, s, lanes);
}

// --- comparisons and selection -------------------------------------------------------------------

struct Less {
  template <class V> BRRR_VX auto test(V a, V b) { return a < b; }
};
struct LessEqual {
  template <class V> BRRR_VX auto test(V a, V b) { return a <= b; }
};
struct Equal {
  template <class V> BRRR_VX auto test(V a, V b) { return a == b; }
};
struct NotEqual {
  template <class V> BRRR_VX auto test(V a, V b) { return a != b; }
};

BRRR_VX b16 to_mask(i32 m) { return m; }
BRRR_VX b16 to_mask(i64 m) { return __builtin_convertvector(m, i32); }

// F::test of two vectors, register by register.
template <class F, class V> BRRR_VX auto by_parts(V a, V b) {
  if constexpr (sizeof(V) <= BRRR_VX_BYTES) {
    return F::test(a, b);
  } else {
    using P = typename Part<Element<V>>::type;
    constexpr int parts = sizeof(V) / BRRR_VX_BYTES;
    decltype(F::test(P{}, P{})) r[parts];
    P x[parts], y[parts];
    __builtin_memcpy(&x, &a, sizeof a);
    __builtin_memcpy(&y, &b, sizeof b);
#pragma GCC unroll 8
    for (int i = 0; i < parts; ++i) r[i] = F::test(x[i], y[i]);
    decltype(F::test(a, b)) all;
    __builtin_memcpy(&all, &r, sizeof all);
    return all;
  }
}
template <class Test, class V> BRRR_VX b16 compare(V a, V b) {
  return to_mask(by_parts<Test>(a, b));
}

BRRR_VX f32 where(b16 m, f32 a, f32 b) {
#if defined(__AVX512F__) || defined(__clang__)
  return m ? a : b;
#elif defined(__AVX2__)
  return by_halves(
      [](f32x8 which, f32x8 x, f32x8 y) { return __builtin_ia32_blendvps256(y, x, which); }, m, a,
      b);
#else
  return (f32)(((i32)a & m) | ((i32)b & ~m));
#endif
}
BRRR_VX i32 where(b16 m, i32 a, i32 b) { return (a & m) | (b & ~m); }
BRRR_VX i64 where(b16 m, i64 a, i64 b) {
  const i64 wide = __builtin_convertvector(m, i64);
  return (a & wide) | (b & ~wide);
}
BRRR_VX f64 where(b16 m, f64 a, f64 b) { return (f64)where(m, (i64)a, (i64)b); }

template <class V> BRRR_VX b16 lt(V a, V b) { return compare<Less>(a, b); }
template <class V> BRRR_VX b16 le(V a, V b) { return compare<LessEqual>(a, b); }
template <class V> BRRR_VX b16 gt(V a, V b) { return compare<Less>(b, a); }
template <class V> BRRR_VX b16 ge(V a, V b) { return compare<LessEqual>(b, a); }
template <class V> BRRR_VX b16 eq(V a, V b) { return compare<Equal>(a, b); }
template <class V> BRRR_VX b16 ne(V a, V b) { return compare<NotEqual>(a, b); }

// Bit i of the result is the mask of lane i.
BRRR_VX unsigned mask_bits(b16 m) {
#if defined(__AVX512DQ__)
  return static_cast<unsigned short>(__builtin_ia32_cvtd2mask512(m));
#elif defined(__AVX__)
  f32x8 h[2];
  __builtin_memcpy(&h, &m, sizeof h);
  return static_cast<unsigned>(__builtin_ia32_movmskps256(h[0])) |
         static_cast<unsigned>(__builtin_ia32_movmskps256(h[1])) << 8;
#else
  unsigned r = 0;
  for (int i = 0; i < lanes; ++i) r |= (m[i] != 0 ? 1u : 0u) << i;
  return r;
#endif
}
BRRR_VX bool any(b16 m) { return mask_bits(m) != 0; }
BRRR_VX bool all(b16 m) { return mask_bits(m) == 0xffff; }

// The mask of the first n lanes.
BRRR_VX b16 first_lanes(int n) {
  return lt(i32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, splat(n));
}

// i, checked before the kernel to be in [0, n); a GPU's kernel checks it itself (support.h there).
template <class V> BRRR_VX V checked(V i, V) { return i; }

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_H
