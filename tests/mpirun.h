#pragma once
// A stand-in for mpirun, for programs that start processes by it: there may be no MPI here.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/bench/measure/temporary.h"

namespace brrr::test {

/// While it lives, `mpirun -np N program ...` runs the program once, whatever N is, and hands its
/// output to a shell's `filter`.
struct LoneMpirun {
  bench::TemporaryFolder folder;
  bench::Env path;

  explicit LoneMpirun(const std::string& filter = "cat")
      : path("PATH", (folder.path.string() + ":" + std::getenv("PATH")).c_str()) {
    const std::string file = folder.file("mpirun");
    std::ofstream(file) << "#!/bin/sh\nshift 2\n\"$@\" | " << filter << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
};

}  // namespace brrr::test
