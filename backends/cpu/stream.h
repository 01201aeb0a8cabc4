#pragma once
// The processor's limits: loops that measure peak memory bandwidth and peak multiply-adds.

#include <cstddef>
#include <functional>

#include "core/device.h"

namespace brrr::cpu {

struct StreamTime {
  double seconds = 0;        ///< Median of one pass.
  double gb_per_second = 0;  ///< Bytes read and written per pass, over the median.
};

/// Arrays smaller than this may fit in the core's own caches.
inline constexpr size_t kPrivateCacheBytes = size_t{4} << 20;

/// Adds n_reads float32 arrays (1 to 8) of `bytes` each, at least 1024, into one output array
/// (n_reads == 1: copies): the time of a fused pointwise kernel with these streams if arithmetic
/// were free. Runs on this thread or, with `gang`, on all threads of the pool. From
/// kPrivateCacheBytes on the result is the fastest of plain stores, non-temporal stores, and these
/// with software prefetching; below, non-temporal stores only lose. `before`, if any, is called
/// before each timed pass, outside of its time.
StreamTime stream_like(int n_reads, size_t bytes, bool gang = false,
                       const std::function<void()>& before = {});

/// Peak float32 multiply-adds of one core in registers, in GFLOP/s (two operations each).
double fma_peak_gflops();

/// Time of an empty parallel region on all threads of the pool; 0 with one thread, or where the
/// gang cannot be acquired.
double round_trip_ns();

/// The processor's limits, measured by the above: from the cache or, with `anew`, measured again.
DeviceLimits limits(bool anew);

}  // namespace brrr::cpu
