#pragma once
// The numbers of dropout, for its rows and for kernels that make a mask where they need it.

#include <cmath>
#include <cstdint>

#include "ops/vocabulary/vec_draw.h"

namespace brrr {

/// With probability p 0, else `kept`; what is below `limit` of 2^32 is dropped: uniform01 of the
/// word is at least p, rounded to float32.
struct DropoutRate {
  int64_t limit;
  double kept;
  explicit DropoutRate(double p)
      : limit(static_cast<int64_t>(std::ceil(static_cast<float>(p) * 0x1p24f)) << 8),
        kept(p < 1 ? 1 / (1 - p) : 0) {}
};

/// One draw's mask.
struct DropoutDraw : DropoutRate {
  int64_t seed, number;
  /// From the two words of a draw.
  DropoutDraw(const int64_t* words, double p) : DropoutRate(p), seed(words[0]), number(words[1]) {}

  /// Elements i .. i + 15.
  vx::f32 mask(int64_t i) const {
    return vx::where(keeps(i), vx::splat(static_cast<float>(kept)), vx::f32{});
  }
  vx::f64 mask64(int64_t i) const { return vx::where(keeps(i), vx::splat(kept), vx::f64{}); }

 private:
  vx::b16 keeps(int64_t i) const { return vx::draw_keeps<vx::Line>(limit, seed, number, {i, 1}); }
};

}  // namespace brrr
