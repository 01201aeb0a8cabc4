#pragma once
// The gang: the library's worker threads, each pinned to its own CPU. They spin for about 50 us
// after a parallel region and then sleep, so back-to-back regions cost neither a system call nor a
// heap allocation. A call that cannot use the gang (a nested call, a second user thread while the
// gang is busy, a forked child) runs inline in the caller: callers never wait for one another.

namespace brrr::cpu {

/// Threads of a parallel region, the caller included. Initially BRRR_NUM_THREADS, else the number
/// of CPUs in the process's affinity mask.
int num_threads() noexcept;
/// CPUs in the process's affinity mask; more threads than that share CPUs.
int num_cpus() noexcept;
constexpr int kMaxThreads = 1024;
/// Takes effect with the next region; n is clamped to [1, kMaxThreads].
void set_num_threads(int n) noexcept;

}  // namespace brrr::cpu
