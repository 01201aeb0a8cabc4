#pragma once
// The host's C++ compiler: finding it, querying its version, running it.

#include <string>
#include <vector>

namespace brrr::cpu {

struct HostCompiler {
  std::vector<std::string> command;  // as words, {"ccache", "g++"}
  std::string version;               // the first line of --version
  bool gnu = false;                  // g++, which takes extra flags
};

// $BRRR_CXX alone if it is set, else the first that works of $CXX, c++, g++ and clang++. The result
// is kept until one of these variables or PATH changes. Throws Error naming what was tried.
HostCompiler find_host_compiler();

// All arguments but the file names. They override flags in $CXX; those that change results or
// vector width are the library's own, or graph mode would not be bit-identical to eager.
std::vector<std::string> host_compiler_flags(const HostCompiler& compiler);

struct ProcessResult {
  enum End { finished, not_started, timed_out } end = finished;
  int status = 0;      // exit status, 128 + signal when killed
  int error = 0;       // errno when it could not be started
  std::string output;  // the first 64 KB of stdout and stderr, interleaved
};
// Runs a program, looked up in PATH, without a shell, with stdin from /dev/null, in its own process
// group. TMPDIR is `temp_dir` unless that is empty. The group is killed after `limit_s` seconds.
ProcessResult run_process(const std::vector<std::string>& command, double limit_s,
                          const std::string& temp_dir = "");

// Compiles the file `source` into the shared object `object`; temporary files go to `temp_dir`.
ProcessResult compile_shared(const HostCompiler& compiler, const std::string& source,
                             const std::string& object, const std::string& temp_dir);

}  // namespace brrr::cpu
