#pragma once

// A folder, an environment variable, a kernel cache with the lifetime of an object.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace brrr::bench {

// Removes temporary folders when a signal ends the program. A signal handler may do little more
// than start a process.
class Leftovers {
 public:
  // Interrupt key, time limit, closed terminal, closed pipe.
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  static void add(const std::string& path) {
    owner_ = getpid();
    for (int signal : kSignals) {
      const auto before = std::signal(signal, end);
      if (before != SIG_DFL) std::signal(signal, before);
    }
    for (char* slot : paths_) {
      if (*slot || path.size() >= kLongest) continue;
      path.copy(slot, path.size());
      return;
    }
  }
  static void drop(const std::string& path) {
    for (auto& slot : paths_) {
      if (path == slot) std::fill(std::begin(slot), std::end(slot), '\0');
    }
  }

 private:
  static void end(int signal) {
    for (char* path : paths_) {
      if (*path && getpid() == owner_) remove(path);
    }
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
  static void remove(const char* path) {
    const pid_t child = vfork();
    if (child == 0) {
      execl("/bin/rm", "rm", "-rf", path, nullptr);
      _exit(1);
    }
    if (child > 0) waitpid(child, nullptr, 0);
  }
  static constexpr size_t kLongest = 256;
  inline static char paths_[8][kLongest] = {};
  inline static pid_t owner_ = 0;
};

// A unique folder, removed at the end.
struct TemporaryFolder {
  std::filesystem::path path;
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "brrr-XXXXXX").string();
    // A signal between the two would leave the folder behind.
    sigset_t keys, before;
    sigemptyset(&keys);
    for (int signal : Leftovers::kSignals) sigaddset(&keys, signal);
    pthread_sigmask(SIG_BLOCK, &keys, &before);
    const bool made = mkdtemp(name.data());
    if (made) Leftovers::add(name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!made) throw std::runtime_error(name + " cannot be made");
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code none;
    std::filesystem::remove_all(path, none);
    Leftovers::drop(path);
  }
  TemporaryFolder(TemporaryFolder&& o) noexcept : path(std::exchange(o.path, {})) {}
  std::string file(const std::string& name) const { return (path / name).string(); }
};

// Sets a variable, or unsets it.
struct Env {
  std::string name;
  std::optional<std::string> before;
  Env(const char* n, const char* value) : name(n) {
    if (const char* old = std::getenv(n)) before = old;
    value ? setenv(n, value, 1) : unsetenv(n);
  }
  ~Env() { before ? setenv(name.c_str(), before->c_str(), 1) : unsetenv(name.c_str()); }
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;
};

// A private kernel cache, initially empty.
struct PrivateCache {
  TemporaryFolder folder;
  Env variable{"BRRR_CACHE_DIR", folder.path.c_str()};
};

}  // namespace brrr::bench
