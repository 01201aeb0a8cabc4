// Counts the instructions of a call by single-stepping a forked copy of this process with ptrace.
// Needs no hardware counters, which virtual machines seldom provide.
#include <optional>

#include "examples/lab/lab.h"

#if defined(__linux__) && defined(__x86_64__)
#include <link.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <sstream>

#include "tests/bench/report.h"
#endif

namespace examples::lab {

#if defined(__linux__) && defined(__x86_64__)

namespace {

// Functions by start address: end address and mangled name.
using Functions = std::map<uintptr_t, std::pair<uintptr_t, std::string>>;

// This program's functions, from nm.
const Functions& functions() {
  static const Functions all = [] {
    Functions found;
    for (const auto& line : run_child(fmt::format("nm -S /proc/{}/exe 2>/dev/null", getpid()))) {
      std::istringstream words(line);
      std::string address, size, type, name;
      if (!(words >> address >> size >> type >> name) || !std::strchr("tTwWi", type[0])) continue;
      const uintptr_t begin = _r_debug.r_map->l_addr + std::stoul(address, nullptr, 16);
      found[begin] = {begin + std::stoul(size, nullptr, 16), name};
    }
    return found;
  }();
  return all;
}

// The name of the function at an address; "" if it is not in this program's file.
std::string function_at(uintptr_t address) {
  const auto next = functions().upper_bound(address);
  if (next == functions().begin()) return "";
  const auto& [end, name] = std::prev(next)->second;
  return address < end ? name : "";
}

// The parent counts the instructions between the two breakpoints.
[[noreturn]] void run_traced(const std::function<void()>& call) {
  constexpr int warm_up = 10;
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
  for (int i = 0; i < warm_up; ++i) call();
  __asm__ volatile("int3" ::: "memory");
  call();
  __asm__ volatile("int3" ::: "memory");
  _exit(0);
}

bool stops(pid_t child, bool& at_breakpoint) {
  int status = 0;
  siginfo_t info = {};
  if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP ||
      ptrace(PTRACE_GETSIGINFO, child, nullptr, &info) != 0) {
    return false;
  }
  at_breakpoint = info.si_code != TRAP_TRACE;
  return true;
}

std::optional<Instructions> count(const std::function<void()>& call) {
  constexpr int64_t most = 10'000'000;
  const pid_t child = fork();
  if (child < 0) return {};
  if (child == 0) run_traced(call);
  Instructions found;
  bool ended = false, breakpoint = false;
  if (stops(child, breakpoint)) {
    ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL);
    for (int64_t n = 0; n < most && !ended; ++n) {
      user_regs_struct at = {};
      if (ptrace(PTRACE_GETREGS, child, nullptr, &at) != 0) break;
      if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0 || !stops(child, ended)) break;
      if (!ended) ++found[function_at(at.rip)];
    }
  }
  siginfo_t is = {};
  if (waitid(P_PID, static_cast<id_t>(child), &is, WEXITED | WNOHANG | WNOWAIT) == 0) {
    kill(child, SIGKILL);  // Not reaped yet, so the pid cannot have been reused.
    while (waitpid(child, nullptr, 0) == child) {}
  }
  return ended ? std::optional(found) : std::nullopt;
}

}  // namespace

std::optional<Instructions> instructions(const std::function<void()>& call) {
  auto all = count(call);
  const auto empty = count([] {});
  if (!all || !empty) return {};
  for (const auto& [name, n] : *empty) (*all)[name] -= n;
  return all;
}

#else

std::optional<Instructions> instructions(const std::function<void()>&) { return {}; }

#endif

}  // namespace examples::lab
