#pragma once
// The elements of a dropout mask, for its row and for kernels that make them where they need them.

#include <cstdint>

#include "core/device_kernel.h"
#include "ops/vocabulary/vec.h"
#include "ops/vocabulary/vec_random.h"

namespace brrr {

// clang-format off
namespace vx {
BRRR_DEVICE_FUNCTIONS(kDropoutText,
  BRRR_VX b16 dropout_keeps(u32 words, float limit) { return ge(uniform01(words), splat(limit)); }
);
}  // namespace vx
// clang-format on

/// One draw's mask: 0 with probability p, else 1 / (1 - p).
struct DropoutDraw {
  uint64_t seed, number;
  float limit;
  double kept;
  /// From the two words of a draw.
  DropoutDraw(const int64_t* words, double p)
      : seed(static_cast<uint64_t>(words[0])),
        number(static_cast<uint64_t>(words[1])),
        limit(static_cast<float>(p)),
        kept(p < 1 ? 1 / (1 - p) : 0) {}

  /// Elements i .. i + 15, where i is a multiple of 16.
  vx::f32 mask(int64_t i) const {
    return vx::where(keeps(i), vx::splat(static_cast<float>(kept)), vx::f32{});
  }
  vx::f64 mask64(int64_t i) const { return vx::where(keeps(i), vx::splat(kept), vx::f64{}); }

 private:
  vx::b16 keeps(int64_t i) const {
    return vx::dropout_keeps(vx::philox16(static_cast<uint64_t>(i), seed, number), limit);
  }
};

}  // namespace brrr
