#include "backends/cpu/host_compiler.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <sstream>
#include <thread>

#include "backends/kernel_cache.h"
#include "core/check.h"

extern char** environ;

namespace brrr::cpu {

constexpr double compile_limit_s = 120, version_limit_s = 20;
constexpr size_t most_output = 64 << 10;

static std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

static bool is_program(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_regular_file(path, none) && access(path.c_str(), X_OK) == 0;
}

// An anonymous file for the output, at a descriptor of at least 3 even if the standard ones are
// closed, so that setting those up in the child cannot overwrite it.
static int open_output() {
  const int fd = memfd_create("brrr-output", MFD_CLOEXEC);
  const int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (fd >= 0) close(fd);
  return high;
}

static int spawn(const std::vector<std::string>& command, const std::string& temp_dir, int output,
                 pid_t* child) {
  std::vector<char*> argv, env;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::string temp = "TMPDIR=" + temp_dir;
  for (char** e = environ; e && *e; ++e) {
    if (temp_dir.empty() || std::strncmp(*e, "TMPDIR=", 7) != 0) env.push_back(*e);
  }
  if (!temp_dir.empty()) env.push_back(temp.data());
  env.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, 1);
  posix_spawn_file_actions_adddup2(&files, output, 2);
  // Reset signals that the caller may block or ignore: the compiler waits for children of its own.
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (int signal : {SIGCHLD, SIGPIPE, SIGTERM, SIGINT}) sigaddset(&defaults, signal);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(child, argv[0], &files, &attributes, argv.data(), env.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

// Polls, because a signal handler or a thread of the user may handle SIGCHLD.
static void wait_for(pid_t child, double limit_s, ProcessResult& result) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::duration<double>(limit_s);
  auto pause = std::chrono::microseconds(100);
  for (int status = 0;;) {
    const pid_t done = waitpid(child, &status, WNOHANG);
    if (done == child) {
      result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      return;
    }
    // Other code has reaped the child: the caller judges by the files it left.
    if (done < 0 && errno != EINTR) return;
    if (clock::now() >= end) {
      result.end = ProcessResult::timed_out;
      kill(-child, SIGKILL);
      while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
      return;
    }
    std::this_thread::sleep_for(pause);
    if (pause.count() < 2000) pause += pause / 4;
  }
}

// Runs the command with --version. If that fails, `version` is empty and `tried` gets the reason.
static HostCompiler try_compiler(const std::string& label, const std::string& text,
                                 std::string& tried) {
  HostCompiler found;
  auto reject = [&](const std::string& why) {
    tried += fmt::format("{}{} ({})", tried.empty() ? "" : ", ", label, why);
    return HostCompiler{};
  };
  found.command = split_words(text);
  if (is_program(text)) found.command = {text};  // a path may contain spaces
  if (found.command.empty()) return text.empty() ? HostCompiler{} : reject("names no program");
  std::vector<std::string> query = found.command;
  query.push_back("--version");
  const ProcessResult answer = run_process(query, version_limit_s);
  if (answer.end == ProcessResult::not_started) {
    return reject(answer.error == ENOENT ? "not found" : std::strerror(answer.error));
  }
  if (answer.end != ProcessResult::finished || answer.status != 0 || answer.output.empty()) {
    return reject("does not run");
  }
  found.version = answer.output.substr(0, answer.output.find('\n'));
  found.gnu = answer.output.find("Free Software Foundation") != std::string::npos;
  return found;
}

static HostCompiler search_compiler(const std::string& own, const std::string& cxx) {
  std::string tried;
  std::vector<std::pair<std::string, std::string>> candidates{{"BRRR_CXX=" + own, own}};
  if (own.empty()) {
    candidates = {{"CXX=" + cxx, cxx}, {"c++", "c++"}, {"g++", "g++"}, {"clang++", "clang++"}};
  }
  for (const auto& [label, text] : candidates) {
    HostCompiler found = try_compiler(label, text, tried);
    if (!found.version.empty()) return found;
  }
  fail("no compiler: tried {}; install g++ or set CXX to a C++20 compiler", tried);
}

ProcessResult run_process(const std::vector<std::string>& command, double limit_s,
                          const std::string& temp_dir) {
  ProcessResult result;
  const int output = open_output();
  pid_t child = -1;
  result.error = output < 0 ? errno : spawn(command, temp_dir, output, &child);
  if (result.error) {
    result.end = ProcessResult::not_started;
    if (output >= 0) close(output);
    return result;
  }
  wait_for(child, limit_s, result);
  result.output.resize(most_output);
  const ssize_t size = pread(output, result.output.data(), most_output, 0);
  result.output.resize(size > 0 ? static_cast<size_t>(size) : 0);
  close(output);
  return result;
}

HostCompiler find_host_compiler() {
  // Never destroyed: a thread may build during process exit.
  static std::mutex mutex;
  static std::string& known_for = *new std::string;
  static HostCompiler& known = *new HostCompiler;
  const std::string own = jit::env_or_empty("BRRR_CXX"), cxx = jit::env_or_empty("CXX");
  const char* path = std::getenv("PATH");
  const std::string environment = own + '\0' + cxx + '\0' + (path ? path : "\1");
  const std::lock_guard lock(mutex);
  if (known.version.empty() || known_for != environment) {
    known = {};
    known = search_compiler(own, cxx);
    known_for = environment;
  }
  return known;
}

// BRRR_JIT_FLAGS: set in CMakeLists.txt, from the same list that this file is compiled with.
std::vector<std::string> host_compiler_flags(const HostCompiler& compiler) {
  // -nostdlib: linking no start files and no C++ library saves a quarter of a small kernel's build
  // time, and -ffast-math's crtfastmath.o cannot change the floating-point mode of the process.
  // g++ spent half of its time looking for redundant loads behind stores (max-alias-queries), which
  // kernels do not have, and a fifth in the other redundancy and jump passes of -O2 listed here,
  // which find nothing in straight-line vector code. -fgcse and -fivopts stay: without the first
  // exponentials take 3 to 4 % longer, without the second 2 to 3 %; -ftree-slp-vectorize stays:
  // without it vectors of two registers go through memory.
  const char* const spared =
      "--param=sccvn-max-alias-queries-per-access=10 -fno-tree-pre -fno-code-hoisting "
      "-fno-tree-vrp -fno-tree-bit-ccp -fno-tree-dominator-opts -fno-thread-jumps "
      "-fno-expensive-optimizations -fno-rerun-cse-after-loop -fno-cse-follow-jumps "
      "-fno-crossjumping -fno-tree-tail-merge -fira-region=one";
  return split_words(
      fmt::format("-fno-fast-math {} {} -shared -fPIC -nostdlib -Wl,-Bsymbolic -pipe -w -g0 "
                  "-fno-exceptions -fno-rtti -fno-asynchronous-unwind-tables "
                  "-fno-stack-protector -fdiagnostics-color=never",
                  BRRR_JIT_FLAGS, compiler.gnu ? spared : ""));
}

ProcessResult compile_shared(const HostCompiler& compiler, const std::string& source,
                             const std::string& object, const std::string& temp_dir) {
  std::vector<std::string> command = compiler.command;
  for (std::string& flag : host_compiler_flags(compiler)) command.push_back(std::move(flag));
  command.insert(command.end(), {"-x", "c++", source, "-o", object, "-lm"});
  return run_process(command, compile_limit_s, temp_dir);
}

}  // namespace brrr::cpu
