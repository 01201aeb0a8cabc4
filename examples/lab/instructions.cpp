// Instructions of a call, counted one by one: the kernel of the system stops a copy of this process
// after each. No counter of the processor is needed, which virtual machines seldom have.
#include <optional>

#include "examples/lab/lab.h"

#if defined(__linux__) && defined(__x86_64__)
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#endif

namespace examples::lab {

#if defined(__linux__) && defined(__x86_64__)

namespace {

// The functions of this program, from its own file.
class Symbols {
 public:
  Symbols() {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    image_.assign(std::istreambuf_iterator<char>(file), {});
    if (image_.size() < sizeof(Elf64_Ehdr)) return;
    const auto* head = at<Elf64_Ehdr>(0);
    const auto* sections = at<Elf64_Shdr>(head->e_shoff);
    for (int k = 0; k < head->e_shnum; ++k) {
      if (sections[k].sh_type == SHT_SYMTAB) add(sections[k], sections[sections[k].sh_link]);
    }
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* base) {
          *static_cast<uintptr_t*>(base) = info->dlpi_addr;
          return 1;  // The program itself is the first.
        },
        &base_);
  }

  // Mangled; "" where no function of this program is.
  std::string name(uintptr_t address) const {
    const uintptr_t place = address - base_;
    auto it = functions_.upper_bound(place);
    if (it == functions_.begin()) return "";
    --it;
    return place < it->first + it->second.first ? it->second.second : "";
  }

 private:
  template <class T> const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(image_.data() + offset);
  }
  void add(const Elf64_Shdr& symbols, const Elf64_Shdr& names) {
    const auto* all = at<Elf64_Sym>(symbols.sh_offset);
    for (size_t k = 0; k < symbols.sh_size / sizeof(Elf64_Sym); ++k) {
      if (ELF64_ST_TYPE(all[k].st_info) != STT_FUNC || all[k].st_size == 0) continue;
      functions_[all[k].st_value] = {all[k].st_size, at<char>(names.sh_offset + all[k].st_name)};
    }
  }

  std::string image_;
  uintptr_t base_ = 0;
  std::map<uintptr_t, std::pair<size_t, std::string>> functions_;  // By address: size, name.
};

const Symbols& symbols() {
  static const Symbols all;
  return all;
}

// What is counted lies between two breakpoints.
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
      if (!ended) ++found[symbols().name(at.rip)];
    }
  }
  siginfo_t is = {};
  if (waitid(P_PID, static_cast<id_t>(child), &is, WEXITED | WNOHANG | WNOWAIT) == 0) {
    kill(child, SIGKILL);  // It is not yet gone: the number is still its own.
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
