// The device prelude, part 6: random numbers, the same as those of vec_random.h.
#ifndef BRRR_OPS_VEC_DEVICE_RANDOM_H
#define BRRR_OPS_VEC_DEVICE_RANDOM_H

#include "ops/vocabulary/vec_lanes.h"

namespace brrr::vx {

struct Words4 {
  unsigned v[4];
};

// Philox4x32-10: elements 4 * block .. 4 * block + 3 of the draw `offset` under the key `seed`
// (see philox16).
BRRR_VX Words4 philox4(unsigned long block, unsigned long seed, unsigned long offset) {
  unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32);
  unsigned c2 = (unsigned)offset, c3 = (unsigned)(offset >> 32);
  unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    unsigned long p0 = 0xd2511f53ul * c0, p1 = 0xcd9e8d57ul * c2;
    c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0;
    c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;
    c1 = (unsigned)p1;
    c3 = (unsigned)p0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

// The word of element `i` of draw `number` under `seed`. Selects instead of an index, which would
// put the words into memory.
BRRR_VX i64 draw(i64 seed, i64 number, i64 i) {
  unsigned long index = (unsigned long)i.v;
  Words4 w = philox4(index / 4, (unsigned long)seed.v, (unsigned long)number.v);
  unsigned first = (index & 2) != 0 ? w.v[2] : w.v[0], second = (index & 2) != 0 ? w.v[3] : w.v[1];
  return i64((long)((index & 1) != 0 ? second : first));
}

// The standard normal of that element, as in normal16.
BRRR_VX f32 draw_normal(i64 seed, i64 number, i64 i) {
  unsigned long index = (unsigned long)i.v;
  Words4 w = philox4(index / 4, (unsigned long)seed.v, (unsigned long)number.v);
  bool upper = (index & 2) != 0;
  f32 u1 = uniform01(u32(upper ? w.v[2] : w.v[0])), u2 = uniform01(u32(upper ? w.v[3] : w.v[1]));
  return box_muller(u1, u2, f32((index & 1) != 0 ? 0.0f : 0.5f));
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_DEVICE_RANDOM_H
