#pragma once
// Support code that any kernel's text may use besides the prelude: fault records and draws.

#include "core/device_kernel.h"

namespace brrr::cuda {

/// The fault record, in which kernels report invalid values: the first, which is thrown, and the
/// last, in case it occurs after the first was read. `op` is from fault_op(). `set` is 1 for an
/// index outside [0, limit) and 2 for a row of invalid values. `serial` is incremented when the
/// record is cleared, so that older copies are known to have been thrown. Threads do not
/// synchronise here: of several concurrent faults any one is reported.
BRRR_DEVICE_STRUCT(Fault, {
  long set, op, value, limit;
  long serial, count;
  long last_set, last_op, last_value, last_limit;
});

inline constexpr char kSupportText[] = R"(
// A KERNEL that runs its body once for each i in [0, count), one thread per i.
#define EACH_KERNEL(name, Params, threads, i, count)         \
  BRRR_VX void name##_of(const Params& p, long i);           \
  KERNEL(name, Params, threads) {                            \
    const long i = (long)blockIdx.x * threads + threadIdx.x; \
    if (i < count) name##_of(p, i);                          \
  }                                                          \
  BRRR_VX void name##_of(const Params& p, long i)
BRRR_VX void note_fault(char* fault, long set, long op, long value, long limit) {
  volatile Fault* f = (volatile Fault*)fault;  // Other blocks write it concurrently.
  if (!f->set) {
    f->op = op;
    f->value = value;
    f->limit = limit;
    f->set = set;
  }
  f->last_op = op;
  f->last_value = value;
  f->last_limit = limit;
  f->last_set = set;
  f->count = f->count + 1;
}
BRRR_VX bool in_range(char* fault, long i, long limit, long op) {
  if ((unsigned long)i < (unsigned long)limit) return true;
  note_fault(fault, 1, op, i, limit);
  return false;
}
// In a program's text: the index i, which is reported if it is not in [0, n).
#define checked(i, n) (in_range(p.fault, (i)[0], (n)[0], p.op), (i))
// A Philox block of a draw. Of `key`, if given, long 0 is the seed and long `stride` the draw.
BRRR_VX Words4 draw_words(const char* key, long stride, long seed, long draw, long block) {
  const long* words = (const long*)key;
  return words ? philox4(block, words[0], words[stride]) : philox4(block, seed, draw);
}
BRRR_VX void bad_row(char* fault, long row, long op) {
  note_fault(fault, 2, op, row, 0);
}
)";

}  // namespace brrr::cuda
