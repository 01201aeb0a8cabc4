// The CPU vector prelude, part 7: random numbers. Embedded after vec_lanes.h; vec_device_random.h
// is its counterpart on a GPU.
#ifndef BRRR_OPS_VEC_RANDOM_H
#define BRRR_OPS_VEC_RANDOM_H

#include "ops/vocabulary/vec_lanes.h"

namespace brrr::vx {

// One register of 32-bit words, seen also as 64-bit pairs.
typedef Part<unsigned>::type words;
typedef Part<unsigned long>::type pairs;

BRRR_VX words reverse_fours(words p) {
#if BRRR_VX_BYTES == 64
  return __builtin_shufflevector(p, p, 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
#elif BRRR_VX_BYTES == 32
  return __builtin_shufflevector(p, p, 3, 2, 1, 0, 7, 6, 5, 4);
#else
  return __builtin_shufflevector(p, p, 3, 2, 1, 0);
#endif
}

// The 64-bit products of the even words. g++ does not find the instruction by itself.
BRRR_VX words multiply_even(words a, words b) {
#if defined(__AVX512F__) && !defined(__clang__)
  typedef long long i64x8 __attribute__((vector_size(64)));
  return (words)__builtin_ia32_pmuludq512_mask((i32)a, (i32)b, i64x8{},
                                               static_cast<unsigned char>(-1));
#elif defined(__AVX2__) && !defined(__clang__)
  return (words)__builtin_ia32_pmuludq256((i32x8)a, (i32x8)b);
#else
  return (words)(((pairs)a & 0xffffffffUL) * ((pairs)b & 0xffffffffUL));
#endif
}

// Philox4x32-10 (Salmon et al., SC 2011): element k of a draw is word k % 4 of the block whose
// counter is {k / 4, offset}, under the key `seed`. Gives elements index .. index + 15, where
// index is a multiple of 16. Four blocks fill the vector, a counter's words side by side.
BRRR_VX u32 philox16(unsigned long index, unsigned long seed, unsigned long offset) {
  unsigned long block = index / 4;
  unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32);
  unsigned c2 = (unsigned)offset, c3 = (unsigned)(offset >> 32);
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
  const unsigned m0 = 0xd2511f53u, m1 = 0xcd9e8d57u, w0 = 0x9e3779b9u, w1 = 0xbb67ae85u;
  u32 x = {c0, c1, c2, c3, c0 + 1, c1, c2, c3, c0 + 2, c1, c2, c3, c0 + 3, c1, c2, c3};
  const u32 m = {m0, 0, m1, 0, m0, 0, m1, 0, m0, 0, m1, 0, m0, 0, m1, 0};
  const u32 w = {w0, 0, w1, 0, w0, 0, w1, 0, w0, 0, w1, 0, w0, 0, w1, 0};
  u32 key = {k0, 0, k1, 0, k0, 0, k1, 0, k0, 0, k1, 0, k0, 0, k1, 0};
  constexpr int parts = sizeof x / sizeof(words);
  words part[parts], factor, step;
  __builtin_memcpy(&part, &x, sizeof x);
  __builtin_memcpy(&factor, &m, sizeof factor);
  __builtin_memcpy(&step, &w, sizeof step);
  for (int i = 0; i < parts; ++i) {
    words round_key;
    __builtin_memcpy(&round_key, &key, sizeof round_key);
    for (int round = 0; round < 10; ++round) {  // a product is {low 0, high 0, low 1, high 1}
      words product = multiply_even(part[i], factor);
      part[i] = reverse_fours(product) ^ (words)((pairs)part[i] >> 32) ^ round_key;
      round_key += step;
    }
  }
  __builtin_memcpy(&x, &part, sizeof x);
  return x;
}

// Standard normals: a pair of words makes a pair of values, the cosine at the even element.
BRRR_VX f32 normal16(unsigned long index, unsigned long seed, unsigned long offset) {
  f32 u = uniform01(philox16(index, seed, offset));
  f32 u1 = __builtin_shufflevector(u, u, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
  f32 u2 = __builtin_shufflevector(u, u, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  const f32 quarter = {.5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0};
  return box_muller(u1, u2, quarter);
}

// Lane k of the result is `first` + k * `step`.
BRRR_VX i64 places(long first, long step) {
  return i64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * step + first;
}

// Elements that do not fill a vector of philox16.
BRRR_VX_COLD void draw_apart(unsigned long seed, unsigned long number, i64* i) {
  u32 words{};
  long from = -1;
  for (int k = 0; k < lanes; ++k) {
    const long at = (*i)[k], start = at & ~15L;
    if (start != from) words = philox16((unsigned long)(from = start), seed, number);
    (*i)[k] = words[at & 15];
  }
}

// Whether the elements fill a vector of philox16.
BRRR_VX bool fill_vector(i64 i) {
  i64 apart = (i ^ (i64{} + i[0])) ^ i64 { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  return i[0] % 16 == 0 && !any(ne(apart, i64{}));
}

// The words of elements `i` of draw `number` under `seed`, which are the same in all lanes.
BRRR_VX i64 draw(i64 seed, i64 number, i64 i) {
  if (__builtin_expect(fill_vector(i), 1)) {
    u32 words = philox16((unsigned long)i[0], (unsigned long)seed[0], (unsigned long)number[0]);
    return __builtin_convertvector(words, i64);
  }
  draw_apart((unsigned long)seed[0], (unsigned long)number[0], &i);
  return i;
}

// Their standard normals.
BRRR_VX f32 draw_normal(i64 seed, i64 number, i64 i) {
  if (__builtin_expect(fill_vector(i), 1)) {
    return normal16((unsigned long)i[0], (unsigned long)seed[0], (unsigned long)number[0]);
  }
  u32 first = __builtin_convertvector(draw(seed, number, i & ~1L), u32);
  u32 second = __builtin_convertvector(draw(seed, number, i | 1L), u32);
  f32 quarter = where(ne(i & 1L, i64{}), f32{}, splat(0.5f));
  return box_muller(uniform01(first), uniform01(second), quarter);
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_RANDOM_H
