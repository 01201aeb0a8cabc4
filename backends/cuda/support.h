#pragma once
// What every kernel's text may use besides the prelude.

#include "core/device_kernel.h"

namespace brrr::cuda {

/// What a kernel notes of a value that it cannot take. Whoever writes last is told of; `set`, which
/// all of them write, is 1 for an index outside [0, limit) and 2 for a row of values.
BRRR_DEVICE_STRUCT(Fault, {
  long set;
  long op;
  long value;
  long limit;
});

inline constexpr char kSupportText[] = R"(
BRRR_VX void note_fault(char* fault, long set, long op, long value, long limit) {
  Fault* f = (Fault*)fault;
  f->op = op;
  f->value = value;
  f->limit = limit;
  f->set = set;
}
BRRR_VX bool in_range(char* fault, long i, long limit, long op) {
  if ((unsigned long)i < (unsigned long)limit) return true;
  note_fault(fault, 1, op, i, limit);
  return false;
}
// A block of a draw whose seed and number lie in memory, `stride` words apart, or else are given.
BRRR_VX Words4 draw_words(const char* key, long stride, long seed, long draw, long block) {
  const long* words = (const long*)key;
  return words ? philox4(block, words[0], words[stride]) : philox4(block, seed, draw);
}
BRRR_VX void bad_row(char* fault, long row, long op) {
  note_fault(fault, 2, op, row, 0);
}
)";

}  // namespace brrr::cuda
