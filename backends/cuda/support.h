#pragma once
// What every kernel's text may use besides the prelude.

#include "core/device_kernel.h"

namespace brrr::cuda {

/// What a kernel notes of an index that is out of range. Whoever writes last is told of; `set` is
/// written by all of them.
BRRR_DEVICE_STRUCT(Fault, {
  long set;
  long op;
  long value;
  long limit;
});

inline constexpr char kSupportText[] = R"(
BRRR_VX bool in_range(char* fault, long i, long limit, long op) {
  if ((unsigned long)i < (unsigned long)limit) return true;
  Fault* f = (Fault*)fault;
  f->op = op;
  f->value = i;
  f->limit = limit;
  f->set = 1;
  return false;
}
// A block of a draw whose seed and number lie in memory, `stride` words apart, or else are given.
BRRR_VX Words4 draw_words(const char* key, long stride, long seed, long draw, long block) {
  const long* words = (const long*)key;
  return words ? philox4(block, words[0], words[stride]) : philox4(block, seed, draw);
}
)";

}  // namespace brrr::cuda
