#pragma once
// mma.sync.m16n8k16, computed for one lane.

#include <bit>
#include <cmath>
#include <cstring>

#include "tests/emulator/interface.h"

namespace brrr::emulator {

inline float widen_bf16(unsigned short x) {
  return std::bit_cast<float>(static_cast<unsigned>(x) << 16);
}

inline float widen_f16(unsigned short x) {
  // Read as a float, the shifted bits have an exponent too small by 112. Exact for subnormals, too.
  float magnitude = std::bit_cast<float>((x & 0x7fffu) << 13) * 0x1p112f;
  if ((x & 0x7c00) == 0x7c00) magnitude = x & 0x3ff ? NAN : INFINITY;
  return x >> 15 ? -magnitude : magnitude;
}

/// Adds to the four elements of c that `lane` holds: rows lane / 4 and that + 8, columns
/// lane % 4 * 2 and the next. Each slot holds a lane's four registers of a, then two of b, laid out
/// as in the PTX ISA: a register has two elements adjacent along k, the lower one first. Sums are
/// in the order of k, in float; a GPU's order and rounding are not specified.
template <float (*widen)(unsigned short)>
void multiply_fragments(float* c, const brrr_emulator::Slot* slots, unsigned lane) {
  const auto both = [&](unsigned from, unsigned reg, float* to) {
    unsigned x;
    std::memcpy(&x, slots[from].bytes + reg * 4, sizeof x);
    to[0] = widen(static_cast<unsigned short>(x)),
    to[1] = widen(static_cast<unsigned short>(x >> 16));
  };
  float rows[2][16], columns[2][16];
  for (unsigned n = 0; n < 2; ++n) {
    const unsigned row = lane / 4 * 4, column = (lane % 4 * 2 + n) * 4;  // Their first lanes.
    for (unsigned pair = 0; pair < 4; ++pair) {
      for (unsigned far = 0; far < 2; ++far) {  // which half of k
        both(row + pair, far * 2 + n, &rows[n][far * 8 + pair * 2]);
        both(column + pair, 4 + far, &columns[n][far * 8 + pair * 2]);
      }
    }
  }
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned i = 0; i < 4; ++i) c[i] += rows[i / 2][k] * columns[i % 2][k];
  }
}

}  // namespace brrr::emulator
