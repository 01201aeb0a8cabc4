#pragma once
// Constants and masks of dropout, for its rows and for kernels that generate a mask themselves.

#include <cmath>
#include <cstdint>

#include "ops/vocabulary/num.h"
#include "ops/vocabulary/vec_draw.h"

namespace brrr {

/// An element is 0 with probability p, else `kept`. A random word (of 2^32) below `limit` drops it:
/// an element is kept if uniform01(word) is at least p rounded to float32.
struct DropoutRate {
  int64_t limit;
  double kept;
  explicit DropoutRate(double p)
      : limit(static_cast<int64_t>(std::ceil(static_cast<float>(p) * 0x1p24f)) << 8),
        kept(p < 1 ? 1 / (1 - p) : 0) {}
};

/// The dropout mask of one draw.
struct DropoutDraw : DropoutRate {
  int64_t seed, number;

  /// Mask elements i .. i + 15.
  template <class V> V mask(int64_t i) const {
    const vx::b16 keeps = vx::draw_keeps<vx::Line>(limit, seed, number, {i, 1});
    return vx::where(keeps, vx::splat(static_cast<Lane<V>>(kept)), V{});
  }
};

}  // namespace brrr
