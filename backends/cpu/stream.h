#pragma once
// What the processor can do: loops that measure how fast bytes and multiply-adds go at best.

#include <cstddef>
#include <functional>

#include "core/device.h"

namespace brrr::cpu {

struct StreamTime {
  double seconds = 0;        ///< Median of one pass.
  double gb_per_second = 0;  ///< Bytes read and written in a pass, over the median.
};

/// Arrays that the first caches may hold.
inline constexpr size_t kNearBytes = size_t{4} << 20;

/// Adds n_reads float32 arrays (1 to 8) of `bytes`, at least 1024, into one output array (n_reads
/// == 1: copies): what a fused pointwise kernel with these streams takes when its arithmetic costs
/// nothing. On this thread, or with all threads of the pool; from kNearBytes on by the best of
/// plain stores, those that go past the caches, which only lose below, and these with lines asked
/// for ahead of time. `before`, if any, is called before each pass that counts, outside of its
/// time.
StreamTime stream_like(int n_reads, size_t bytes, bool gang = false,
                       const std::function<void()>& before = {});

/// Multiply-adds of float32 of one core in registers, two operations each, in GFLOP/s.
double fma_peak_gflops();

/// Time of an empty parallel region on all threads of the pool; 0 with one, or where the gang is
/// not to be had.
double round_trip_ns();

/// What the processor can do, by these: as kept, or measured anew.
DeviceLimits limits(bool anew);

}  // namespace brrr::cpu
