#pragma once
// Kernels of ordering rows on a GPU (the CPU's are beside the rows).

#include "core/rng.h"

namespace brrr {

/// Weights whose running sums a thread makes, for draws with replacement on any device.
inline constexpr int64_t kDrawPart = 256;

struct OrderAttrs {
  int64_t descending;
  int64_t most = -1;  ///< Elements that are asked for; -1: all.
};
struct MultinomialAttrs {
  DrawAttrs draw;
  int64_t samples, replacement;
};
/// Of a call of multinomial. One sample is the same with replacement, which costs less.
inline bool with_replacement(const OpCall& c) {
  const auto a = c.attrs.as<MultinomialAttrs>();
  return a.replacement || a.samples == 1;
}

void order_cuda(OpCall& c);
void multinomial_cuda(OpCall& c);

}  // namespace brrr
