#pragma once
// The gang: worker threads that the library owns, pinned to CPUs of their own. They spin for about
// 50 us after a region and then sleep, so back-to-back regions cost neither a system call nor a
// heap allocation. Whatever cannot use the gang (a nested call, a second user thread while the
// gang is busy, a forked child) runs inline in the caller: callers never wait for one another.

namespace brrr::cpu {

/// Threads a parallel region uses, the caller included. The start value is BRRR_NUM_THREADS, else
/// the number of CPUs in the process's affinity mask.
int num_threads() noexcept;
/// Those in the affinity mask: threads beyond them take turns.
int num_cpus() noexcept;
constexpr int kMaxThreads = 1024;
/// Takes effect from the next region on; values are clamped to [1, kMaxThreads].
void set_num_threads(int n) noexcept;

}  // namespace brrr::cpu
