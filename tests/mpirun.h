#pragma once
// A stand-in for mpirun, for programs that start processes by it: MPI may not be installed.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/bench/measure/temporary.h"

namespace brrr::test {

/// While it lives, `mpirun -np N program ...` runs the program once, whatever N is, and pipes its
/// output through the shell command `filter`.
struct FakeMpirun {
  bench::TemporaryFolder folder;
  bench::Env path;

  explicit FakeMpirun(const std::string& filter = "cat")
      : path("PATH", (folder.path.string() + ":" + std::getenv("PATH")).c_str()) {
    const std::string file = folder.file("mpirun");
    std::ofstream(file) << "#!/bin/sh\nshift 2\n\"$@\" | " << filter << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
};

}  // namespace brrr::test
