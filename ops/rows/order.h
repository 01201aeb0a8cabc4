#pragma once
// What sorting, the k largest and draws without replacement share: keys that order like numbers,
// with the position in the lower part, so that no two entries are equal and every way of sorting
// them gives the same result: ties in order of position.

#include <algorithm>
#include <cstdint>

#include "core/device_kernel.h"
#include "ops/vocabulary/vec.h"

namespace brrr {

// Unsigned integers in the order of the numbers; -0 is 0, and every NaN is greater than all else.
// clang-format off
BRRR_DEVICE_FUNCTIONS(OrderKeyText,
  BRRR_VX unsigned order_key(float x) {
    const unsigned b = __builtin_bit_cast(unsigned, x + 0.0f);
    return x != x ? ~0u : b >> 31 ? ~b : b | 1u << 31;
  }
  BRRR_VX unsigned long order_key(double x) {
    const unsigned long b = __builtin_bit_cast(unsigned long, x + 0.0);
    return x != x ? ~0ul : b >> 63 ? ~b : b | 1ul << 63;
  }
  BRRR_VX unsigned order_key(int x) { return (unsigned)x ^ 1u << 31; }
  BRRR_VX unsigned long order_key(long x) { return (unsigned long)x ^ 1ul << 63; }
);
// clang-format on

/// A 32-bit key and a position below 2^32.
struct NarrowEntry {
  uint64_t word;
  NarrowEntry(uint32_t key, int64_t at) : word(uint64_t{key} << 32 | static_cast<uint64_t>(at)) {}
  int64_t at() const { return static_cast<int64_t>(word & 0xffffffffu); }
  friend bool operator<(NarrowEntry a, NarrowEntry b) { return a.word < b.word; }
};

struct WideEntry {
  uint64_t key;
  int64_t position;
  WideEntry(uint64_t k, int64_t at) : key(k), position(at) {}
  int64_t at() const { return position; }
  friend bool operator<(const WideEntry& a, const WideEntry& b) {
    return a.key != b.key ? a.key < b.key : a.position < b.position;
  }
};

/// Moves the k smallest of n entries to the front, in order.
template <class E> void smallest_first(E* e, int64_t n, int64_t k) {
  if (k == 0) return;
  if (k < n && k <= n / 16) return std::partial_sort(e, e + k, e + n);
  if (k < n) std::nth_element(e, e + k - 1, e + n);
  std::sort(e, e + k);
}

}  // namespace brrr
