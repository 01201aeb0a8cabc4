// The CPU vector prelude, part 6: random numbers. Embedded after vec_lanes.h; vec_device_random.h
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

// The 64-bit products of the even words. g++ does not generate the instruction by itself.
BRRR_VX words multiply_even(words a, words b) {
#if defined(__AVX512F__) && !defined(__clang__)
  return (words)__builtin_ia32_pmuludq512_mask((i32)a, (i32)b, Part<long long>::type{},
                                               static_cast<unsigned char>(-1));
#elif defined(__AVX2__) && !defined(__clang__)
  return (words)__builtin_ia32_pmuludq256((i32x8)a, (i32x8)b);
#else
  return (words)(((pairs)a & 0xffffffffUL) * ((pairs)b & 0xffffffffUL));
#endif
}

// Philox4x32-10 (Salmon et al., SC 2011): element k of a draw is word k % 4 of the block whose
// counter is {k / 4, offset}, under the key `seed`. Gives elements index .. index + 15, where index
// is a multiple of 16. A counter's words are adjacent lanes. A round has a latency of some five
// cycles, so the registers' rounds are interleaved.
BRRR_VX u32 philox16(unsigned long index, unsigned long seed, unsigned long offset) {
  const unsigned m0 = 0xd2511f53u, m1 = 0xcd9e8d57u, w0 = 0x9e3779b9u, w1 = 0xbb67ae85u;
  const u32 lane = {0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
  const u32 m = {m0, 0, m1, 0, m0, 0, m1, 0, m0, 0, m1, 0, m0, 0, m1, 0};
  // In the upper word of a pair, because the key is combined with words that are then moved down.
  const u32 w = {0, w0, 0, w1, 0, w0, 0, w1, 0, w0, 0, w1, 0, w0, 0, w1};
  const u32 low = {~0u, ~0u, 0, 0, ~0u, ~0u, 0, 0, ~0u, ~0u, 0, 0, ~0u, ~0u, 0, 0};
  constexpr int parts = sizeof(u32) / sizeof(pairs);
  pairs part[parts], factor, step, first;
  __builtin_memcpy(&part, &lane, sizeof lane);
  __builtin_memcpy(&factor, &m, sizeof factor);
  __builtin_memcpy(&step, &w, sizeof step);
  __builtin_memcpy(&first, &low, sizeof first);
  const auto in_turns = [=](unsigned long a, unsigned long b) {
    return ((pairs{} + a) & first) + ((pairs{} + b) & ~first);
  };
  for (int i = 0; i < parts; ++i) part[i] += in_turns(index / 4, offset);
  pairs key = in_turns(seed << 32, seed >> 32 << 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {  // a product is {low 0, high 0, low 1, high 1}
    for (int i = 0; i < parts; ++i) {
      const words product = multiply_even((words)part[i], (words)factor);
      part[i] = (pairs)reverse_fours(product) ^ (part[i] ^ key) >> 32;
    }
    key += step;
  }
  u32 x;
  for (int i = 0; i < parts; ++i) {
    __builtin_memcpy((char*)&x + i * (int)sizeof(pairs), &part[i], sizeof(pairs));
  }
  return x;
}

// The uniforms of each pair of elements, given to both elements.
BRRR_VX void pairs16(unsigned long index, unsigned long seed, unsigned long offset, f32* u1,
                     f32* u2) {
  f32 u = uniform01(philox16(index, seed, offset));
  *u1 = __builtin_shufflevector(u, u, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
  *u2 = __builtin_shufflevector(u, u, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
}
// Standard normals: a pair of words makes a pair of values, the cosine at the even element.
BRRR_VX f32 normal16(unsigned long index, unsigned long seed, unsigned long offset) {
  f32 u1, u2;
  pairs16(index, seed, offset, &u1, &u2);
  const f32 quarter = {.5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0, .5f, 0};
  return box_muller(u1, u2, quarter);
}

// --- indices of elements -------------------------------------------------------------------------

// Sixteen integers, lane k being `first` + k * `step`: indices of elements, or, with step 0, one
// value that all share. Sums and comparisons take a few instructions, not 128 bytes of registers.
// Comparisons need steps of at most longest_step, so that sums of a few of them fit an int32.
constexpr long longest_step = 1L << 24;
struct Line {
  long first, step;
  Line() = default;
  constexpr Line(long x, long by = 0) : first(x), step(by) {}
  // The line whose lanes x holds.
  BRRR_VX Line of(i64 x) { return {x[0], x[1] - x[0]}; }
  long operator[](int k) const { return first + k * step; }
  friend Line operator+(Line a, Line b) { return {a.first + b.first, a.step + b.step}; }
  friend Line operator-(Line a, Line b) { return {a.first - b.first, a.step - b.step}; }
};

// The lanes as a vector.
BRRR_VX i64 spread(Line x) {
  return i64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * x.step + x.first;
}
template <class V> BRRR_VX V spread(V x) { return x; }
BRRR_VX Line splat(Line x) { return x; }

// For values whose difference fits: tests it against 0 in int32, clamped with its sign.
template <class Test> BRRR_VX b16 compare(Line a, Line b) {
  constexpr long far = 1L << 30;
  const Line x = a - b;
  const int first = (int)(x.first < -far ? -far : x.first > far ? far : x.first);
  const i32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return compare<Test>(lane * (int)x.step + first, i32{});
}
BRRR_VX b16 lt(Line x, Line y) { return compare<Less>(x, y); }
BRRR_VX b16 le(Line x, Line y) { return compare<Less>(x, y + 1); }
BRRR_VX b16 gt(Line x, Line y) { return compare<Less>(y, x); }
BRRR_VX b16 ge(Line x, Line y) { return compare<Less>(y, x + 1); }
BRRR_VX b16 eq(Line x, Line y) { return compare<Equal>(x, y); }
BRRR_VX b16 ne(Line x, Line y) { return compare<NotEqual>(x, y); }

// --- draws ---------------------------------------------------------------------------------------

// Elements that are not one aligned vector of philox16. Consecutive ones, as in rows of any length,
// lie in two.
BRRR_VX_COLD void draw_apart(unsigned long seed, unsigned long number, Line i, u32* to) {
  if (i.step == 1) {
    const auto first = (unsigned long)i.first & ~15UL;
    const u32 two[] = {philox16(first, seed, number), philox16(first + 16, seed, number)};
    __builtin_memcpy(to, (const unsigned*)two + i.first % 16, sizeof *to);
    return;
  }
  u32 words{};
  long from = -1;
  for (int k = 0; k < lanes; ++k) {
    const long start = i[k] & ~15L;
    if (start != from) words = philox16((unsigned long)(from = start), seed, number);
    (*to)[k] = words[i[k] & 15];
  }
}

// The words of elements `i` of draw `number` under `seed`, both the same for all elements.
BRRR_VX u32 draw(Line seed, Line number, Line i) {
  const auto key = (unsigned long)seed.first, which = (unsigned long)number.first;
  if (__builtin_expect(i.step == 1 && i.first % 16 == 0, 1)) {
    return philox16((unsigned long)i.first, key, which);
  }
  u32 words;
  draw_apart(key, which, i, &words);
  return words;
}
BRRR_VX i64 draw(i64 seed, i64 number, i64 i) {
  return convert<i64>(draw(Line::of(seed), Line::of(number), Line::of(i)));
}
BRRR_VX u64 wide(u32 words) { return convert<u64>(words); }
// For words and an integer limit in [0, 2^32].
BRRR_VX b16 ge(u32 words, Line limit) {
  const int below = (int)((unsigned)(limit.first - 1) ^ 0x80000000u), all = limit.first == 0;
  return gt((i32)(words ^ 0x80000000u), splat(below)) | splat(-all);
}

// Standard normals of the same elements.
BRRR_VX_COLD void normals_apart(unsigned long seed, unsigned long number, Line i, f32* to) {
  f32 u1, u2, quarter;
  if (i.step == 1) {
    const auto first = (unsigned long)i.first & ~15UL;
    f32 ones[2], others[2];
    for (int k = 0; k < 2; ++k) pairs16(first + 16UL * k, seed, number, ones + k, others + k);
    __builtin_memcpy(&u1, (const float*)ones + i.first % 16, sizeof u1);
    __builtin_memcpy(&u2, (const float*)others + i.first % 16, sizeof u2);
    for (int k = 0; k < lanes; ++k) quarter[k] = (i.first + k) % 2 ? 0.0f : 0.5f;
  } else {
    u32 first, second;
    for (int k = 0; k < lanes; ++k) {
      const u32 words = philox16((unsigned long)(i[k] & ~15L), seed, number);
      first[k] = words[i[k] & 14];
      second[k] = words[(i[k] & 14) + 1];
      quarter[k] = i[k] % 2 ? 0.0f : 0.5f;
    }
    u1 = uniform01(first);
    u2 = uniform01(second);
  }
  *to = box_muller(u1, u2, quarter);
}
BRRR_VX f32 draw_normal(Line seed, Line number, Line i) {
  const auto key = (unsigned long)seed.first, which = (unsigned long)number.first;
  if (__builtin_expect(i.step == 1 && i.first % 16 == 0, 1)) {
    return normal16((unsigned long)i.first, key, which);
  }
  f32 z;
  normals_apart(key, which, i, &z);
  return z;
}
BRRR_VX f32 draw_normal(i64 seed, i64 number, i64 i) {
  return draw_normal(Line::of(seed), Line::of(number), Line::of(i));
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_RANDOM_H
