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
)";

}  // namespace brrr::cuda
