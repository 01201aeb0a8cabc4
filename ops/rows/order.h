#pragma once
// Shared by sort, topk and sampling without replacement: entries of a key, which orders like the
// numbers, and below it the position. No two entries are equal, so every correct sort gives the
// same result, with ties in order of position.

#include <cstdint>

#include "core/device_kernel.h"
#include "core/op.h"
#include "ops/vocabulary/vec.h"

namespace brrr {

// Unsigned integers that order like the numbers; -0 equals 0, and NaN is greater than all else.
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

// Entries of a key and a position, narrow ones if keys and positions are below 2^32.
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
  int64_t most = -1;  ///< Elements wanted of each row; -1: all.
};

/// The kernels of argsort and topk: positions of each row's first elements, as many as out has.
void order_cpu(OpCall& c);
void order_cuda(OpCall& c);

// --- on a GPU (sort_cuda.cpp) --------------------------------------------------------------------

/// Memory for rows of entries on a GPU: [rows, n, words of an entry].
inline Tensor entry_rows(bool wide, int64_t rows, int64_t n, Device device) {
  return raw_empty({rows, n, wide ? 2 : 1}, kInt64, device);
}

/// Sorts each row of entries and returns its first k > 0 of them, k in a row; or writes only their
/// positions, to `positions`.
Tensor sort_entries(const Tensor& entries, int64_t k, char* positions = nullptr);

}  // namespace brrr
