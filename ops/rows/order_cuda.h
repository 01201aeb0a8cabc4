#pragma once
// Sorting on a GPU. As on the CPU (ops/rows/order.h) no two entries are equal, so every correct way
// of sorting gives the same bits; a stable sort by index is a sort of (index, position).

#include "core/tensor_impl.h"

namespace brrr {

/// For kernels' texts: EntryOf<wide>::type, a key with a position. A narrow one is a word of 8
/// bytes for keys and positions below 2^32; a wide one takes 16 bytes.
inline constexpr char kEntryText[] = R"(
struct Narrow {
  unsigned long word;
};
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
)";

/// Rows of entries on a GPU, to be sorted each by itself.
struct EntryRows {
  bool wide;
  int64_t rows, n;
  Tensor memory;

  EntryRows(bool wide, int64_t rows, int64_t n, Device device)
      : wide(wide),
        rows(rows),
        n(n),
        memory(raw_empty({rows * n * (wide ? 2 : 1)}, kInt64, device)) {}
  char* data() const { return memory.impl()->data(); }
};

/// The first k > 0 entries of each row in order, [rows, k].
Tensor sort_entries(const EntryRows& e, int64_t k);
/// Only their positions, to `positions`.
void sort_entries(const EntryRows& e, int64_t k, char* positions);

}  // namespace brrr
