#pragma once
// Kernels of ordering rows on a GPU (the CPU's are beside the rows).

#include "core/op.h"

namespace brrr {

/// Weights whose running sums a thread makes, for draws with replacement on any device.
inline constexpr int64_t kDrawPart = 256;

/// Of a call of multinomial. One sample is the same with replacement, which costs less.
inline bool with_replacement(const OpCall& c) {
  return c.attrs.v[3] != 0 || c.attrs.v[2] == 1;
}

void order_cuda(OpCall& c);
void multinomial_cuda(OpCall& c);

}  // namespace brrr
