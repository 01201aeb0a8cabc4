#pragma once
// The gang: worker threads that the library owns, pinned to CPUs of their own. They spin for about
// 50 us after a region and then sleep, so back-to-back regions cost neither a system call nor a
// heap allocation. Whatever cannot use the gang (a nested call, a second user thread while the
// gang is busy, a forked child) runs inline in the caller: callers never wait for one another.
#include <cstdint>

namespace brrr::cpu {

/// Threads a parallel region uses, the caller included. The start value is BRRR_NUM_THREADS, else
/// the number of CPUs in the process's affinity mask.
int num_threads() noexcept;
/// Those in the affinity mask: threads beyond them take turns.
int num_cpus() noexcept;
constexpr int kMaxThreads = 1024;
/// Takes effect from the next region on; values are clamped to [1, kMaxThreads].
void set_num_threads(int n) noexcept;
using RangeFn = void (*)(void* ctx, int64_t begin, int64_t end);

/// Splits [0, n) into at most num_threads() contiguous chunks, each but the last a multiple of
/// `grain`, and calls fn once for each. One inline call fn(ctx, 0, n) when n <= grain or the gang
/// is not to be had, so results must not depend on the split. All compute as the caller does, with
/// its rounding and its denormals. The first exception of the lowest
/// chunk is rethrown after all chunks have ended.
void run_ranges(int64_t n, int64_t grain, RangeFn fn, void* ctx);

}  // namespace brrr::cpu
