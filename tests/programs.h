#pragma once
// Runs the example programs as processes.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/error_text.h"

#ifdef BRRR_EXAMPLES_DIR

namespace brrr::test {

struct Result {
  int status = -1;
  std::string text;  // stdout and stderr
};

inline const std::string kPrograms = BRRR_EXAMPLES_DIR;

/// Runs "program options" to its end, in `folder`, prefixed by the command `by` if given.
inline Result run(const std::string& command, const std::string& folder = ".",
                  const std::string& by = "") {
  Result r;
  FILE* pipe =
      popen(("cd " + folder + " && " + by + kPrograms + "/" + command + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  char part[4096];
  for (size_t n; (n = fread(part, 1, sizeof part, pipe)) > 0;) r.text.append(part, n);
  const int status = pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 256;
  return r;
}

// The word after `label` in the output of a program that must have succeeded.
inline std::string word_after(const Result& r, const std::string& label) {
  INFO(r.text);
  CHECK(r.status == 0);
  const size_t at = r.text.find(label);
  REQUIRE(at != std::string::npos);
  const size_t begin = r.text.find_first_not_of(' ', at + label.size());
  return r.text.substr(begin, r.text.find_first_of(" \n", begin) - begin);
}
inline std::string parameters(const Result& r) { return word_after(r, "\nparameters"); }

/// Starts a program as a separate process with its output discarded.
inline pid_t start(const std::string& name, const std::vector<std::string>& options) {
  const std::string program = kPrograms + "/" + name;
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& o : options) argv.push_back(const_cast<char*>(o.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (int key : {SIGINT, SIGHUP}) signal(key, SIG_DFL);  // The tests may ignore them.
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return child;
}

}  // namespace brrr::test

#endif
