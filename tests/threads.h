#pragma once
// A scoped thread count, and the number of threads that accept a signal.

#include <filesystem>
#include <fstream>
#include <string>

#include "backends/cpu/pool.h"

namespace brrr::test {

struct Threads {
  int before = cpu::num_threads();
  explicit Threads(int n = cpu::num_threads()) { cpu::set_num_threads(n); }
  ~Threads() { cpu::set_num_threads(before); }
};

/// The number of threads of this process that do not block the signal.
inline int threads_taking(int signal) {
  int n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool exited = false;  // Linux reports 0 threads and an empty mask for one that is exiting.
    for (std::string line; std::getline(status, line);) {
      exited |= line == "Threads:\t0";
      if (exited || !line.starts_with("SigBlk:")) continue;
      n += !(std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1);
    }
  }
  return n;
}

}  // namespace brrr::test
