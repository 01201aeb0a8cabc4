#pragma once
// The host's C++ compiler: finding it, asking its version, running it.

#include <string>
#include <vector>

namespace brrr::cpu {

struct HostCompiler {
  std::vector<std::string> command;  // the user's words, "ccache g++"
  std::string version;               // the first line of --version
  bool gnu = false;                  // it is g++, and takes that one's flags
};

// $BRRR_CXX alone if it is set, else the first that works of $CXX, c++, g++ and clang++. Looked up
// again only when one of these variables or PATH has changed. Throws Error with what was tried.
HostCompiler find_host_compiler();

// All flags but the names of the files. They reset what the words of $CXX may have asked for; those
// that change results or vector width are the library's, or graph mode would not equal eager to the
// last bit.
std::vector<std::string> host_compiler_flags(const HostCompiler& compiler);

struct ProcessResult {
  enum End { finished, not_started, timed_out } end = finished;
  int status = 0;      // the exit status, 128 + signal when killed
  int error = 0;       // errno when it could not be started
  std::string output;  // the start of stdout and stderr together
};
// Runs a program, found as a shell would, without one, with nothing to read, in a process group of
// its own. Its temporary files go to `temp_dir` unless that is empty. After `limit_s` seconds it is
// killed.
ProcessResult run_process(const std::vector<std::string>& command, double limit_s,
                          const std::string& temp_dir = "");

// Compiles the file `source` into the shared object `object`; other files go to `temp_dir`.
ProcessResult compile_shared(const HostCompiler& compiler, const std::string& source,
                             const std::string& object, const std::string& temp_dir);

}  // namespace brrr::cpu
