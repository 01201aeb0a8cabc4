// The vector prelude, part 7, portable: values from the words of a draw. Words and indices of
// elements are i64; `seed` and `number`, which identify the draw, are the same in all lanes.
#ifndef BRRR_OPS_VEC_DRAW_H
#define BRRR_OPS_VEC_DRAW_H

#include "ops/vocabulary/vec_random.h"

namespace brrr::vx {

BRRR_VX u64 wide(i64 words) { return (u64)words; }

// The upper 64 bits of an unsigned product.
BRRR_VX u64 high_product(u64 a, u64 b) {
  u64 a0 = a & 0xffffffffUL, a1 = a >> 32, b0 = b & 0xffffffffUL, b1 = b >> 32;
  u64 middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffffUL);
  return a1 * b1 + (middle >> 32) + (other >> 32);
}

// An integer in [0, range), which is unsigned: the high part of word * range (Lemire, "Fast random
// integer generation in an interval", 2019). Without its rejection, so that each element's cost and
// counter are fixed, a value's probability is off by at most one part in 2^32 / range. Above 2^20
// the bias could be observed, so element i takes words 2i, 2i + 1; range 2^32 is exact.
template <class I> BRRR_VX i64 draw_below(I range, I seed, I number, I i) {
  const auto values = (unsigned long)range[0];
  if (values <= 1UL << 20 || values == 1UL << 32) {
    return (i64)(wide(draw(seed, number, i)) * values >> 32);
  }
  u64 word = wide(draw(seed, number, i + i + 1L)) << 32 | wide(draw(seed, number, i + i));
  return (i64)high_product(word, u64{} + values);
}

// Whether dropout keeps an element: uniform01 of its word is at least `limit` / 2^32.
template <class I> BRRR_VX b16 draw_keeps(I limit, I seed, I number, I i) {
  return ge(draw(seed, number, i), limit);
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_DRAW_H
