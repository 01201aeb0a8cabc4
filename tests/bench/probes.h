#pragma once

// Counts what a replay must not do: heap allocations and system calls. Include in only one source
// file of a program, because it replaces malloc in the whole program.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>

#include "tests/sanitizer.h"

namespace brrr::bench {

// Calls of malloc, calloc, realloc, aligned_alloc and posix_memalign by this thread; operator new
// calls malloc.
inline constinit thread_local std::uint64_t heap_calls = 0;

// A sanitizer's own malloc must stay.
#if defined(__GLIBC__) && !BRRR_ASAN && !BRRR_TSAN
inline constexpr bool counts_heap_calls = true;
#else
inline constexpr bool counts_heap_calls = false;
#endif

// Result of running `body` in a forked child that may make no system call.
struct SystemCallProbe {
  bool possible = false;  // false: this kernel does not let a process install a filter
  long first = -1;        // number of the first system call; -1: none
};

namespace detail {
// Memory shared with the child, which dies at its first system call.
inline volatile long* probe_result = nullptr;

inline void on_system_call(int, siginfo_t* info, void*) {
  *probe_result = info->si_syscall;
  _exit(0);
}

inline bool forbid_system_calls() {
  struct sigaction action = {};
  action.sa_sigaction = on_system_call;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  sock_fprog program = {sizeof rules / sizeof rules[0], rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
}  // namespace detail

// Runs warm_up, then body with system calls forbidden, in a forked child. One thread only, as a
// fork has no other threads. Reading the clock needs no system call (vDSO).
inline SystemCallProbe probe_system_calls(const std::function<void()>& warm_up,
                                          const std::function<void()>& body) {
  constexpr long not_possible = -2, died = -3, none = -1;
  void* page =
      mmap(nullptr, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return {};
  detail::probe_result = static_cast<volatile long*>(page);
  *detail::probe_result = died;
  const pid_t child = fork();
  if (child == 0) {
    warm_up();
    if (!detail::forbid_system_calls()) {
      *detail::probe_result = not_possible;
      _exit(0);
    }
    body();
    *detail::probe_result = none;
    _exit(0);
  }
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  const long result = child > 0 ? *detail::probe_result : not_possible;
  munmap(page, sizeof(long));
  if (result == not_possible || result == died) return {};
  return {true, result};
}

}  // namespace brrr::bench

#if defined(__GLIBC__) && !BRRR_ASAN && !BRRR_TSAN
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  ++brrr::bench::heap_calls;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  ++brrr::bench::heap_calls;
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  ++brrr::bench::heap_calls;
  return __libc_realloc(p, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  ++brrr::bench::heap_calls;
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** p, size_t alignment, size_t n) {
  ++brrr::bench::heap_calls;
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : 12;  // ENOMEM
}
}
#endif
