#pragma once
// What sorting, the k largest and draws without replacement share: keys that order like numbers,
// with the position in the lower part, so that no two entries are equal and every way of sorting
// them gives the same result: ties in order of position.

#include <cstdint>

#include "core/device_kernel.h"
#include "core/op.h"
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

// Entries, a key with a position: a narrow one for keys and positions below 2^32.
BRRR_DEVICE_FUNCTIONS(kEntryText,
  struct Narrow { unsigned long word; };
  struct Wide {
    unsigned long key;
    long at;
  };
  template <bool wide> struct EntryOf { using type = Narrow; };
  template <> struct EntryOf<true> { using type = Wide; };
  BRRR_VX void set_entry(Narrow& e, unsigned long key, long at) {
    e.word = key << 32 | (unsigned long)at;
  }
  BRRR_VX void set_entry(Wide& e, unsigned long key, long at) {
    e.key = key;
    e.at = at;
  }
  BRRR_VX unsigned long key_of(Narrow e) { return e.word >> 32; }
  BRRR_VX unsigned long key_of(Wide e) { return e.key; }
  BRRR_VX long position_of(Narrow e) { return (long)(e.word & 0xffffffff); }
  BRRR_VX long position_of(Wide e) { return e.at; }
  BRRR_VX bool before(Narrow a, Narrow b) { return a.word < b.word; }
  BRRR_VX bool before(Wide a, Wide b) { return a.key != b.key ? a.key < b.key : a.at < b.at; }
);
// clang-format on

struct OrderAttrs {
  int64_t descending;
  int64_t most = -1;  ///< Elements that are asked for; -1: all.
};

/// The kernels of argsort and topk: of each row, positions of as many elements as the result has.
void order_cpu(OpCall& c);
void order_cuda(OpCall& c);

// --- on a GPU (sort_cuda.cpp) --------------------------------------------------------------------

/// Room for rows of entries on a GPU: [rows, n, words of an entry].
inline Tensor entry_rows(bool wide, int64_t rows, int64_t n, Device device) {
  return raw_empty({rows, n, wide ? 2 : 1}, kInt64, device);
}

/// The first k > 0 entries of each row, to be sorted by itself, in order, k in a row; or only their
/// positions, to `positions`.
Tensor sort_entries(const Tensor& entries, int64_t k, char* positions = nullptr);

}  // namespace brrr
