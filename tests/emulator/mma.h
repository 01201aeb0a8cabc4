#pragma once
// mma.sync.m16n8k16 as one lane sees it.

#include <bit>
#include <cmath>
#include <cstring>

#include "tests/emulator/interface.h"

namespace brrr::emulator {

inline float widen_bf16(unsigned short x) {
  return std::bit_cast<float>(static_cast<unsigned>(x) << 16);
}

inline float widen_f16(unsigned short x) {
  const int exponent = x >> 10 & 31, mantissa = x & 0x3ff;
  float magnitude = exponent ? std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25)
                             : std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent == 31) magnitude = mantissa ? NAN : INFINITY;
  return x >> 15 ? -magnitude : magnitude;
}

/// Adds to the four elements of c that `lane` holds: rows lane / 4 and that + 8, columns
/// lane % 4 * 2 and the next. Each slot has a lane's four registers of a, then two of b, laid out
/// as the PTX ISA says: a register holds two neighbours along k, the lower one first. Sums run
/// over k in order, in float; a GPU's own order and rounding are not specified.
template <float (*widen)(unsigned short)>
void multiply_fragments(float* c, const brrr_emulator::Slot* slots, unsigned lane) {
  const auto half = [&](unsigned from, unsigned reg, unsigned k) {
    unsigned short x;
    std::memcpy(&x, slots[from].bytes + reg * 4 + k % 2 * 2, 2);
    return widen(x);
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4, upper = i / 2, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned pair = k % 8 / 2, far = k / 8;  // which lane of four, which half of k
      c[i] += half(row * 4 + pair, far * 2 + upper, k) * half(column * 4 + pair, 4 + far, k);
    }
  }
}

}  // namespace brrr::emulator
