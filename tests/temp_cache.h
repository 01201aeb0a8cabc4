#pragma once
// Shared by tests of generated kernels: a private cache, files, the environment.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/bench/measure/temporary.h"

namespace brrr::test {

namespace fs = std::filesystem;
using bench::Env;

struct TempCache : bench::PrivateCache {  // also clears variables that tests depend on
  std::string dir = folder.path.string();
  Env jit{"BRRR_JIT", nullptr}, fail{"BRRR_JIT_FAIL", nullptr}, keep{"BRRR_KEEP_SOURCE", nullptr};

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir)) {
      if (entry.path().filename() != "lock") names.push_back(entry.path().string());
    }
    return names;
  }
  std::string only_file() const {
    REQUIRE(files().size() == 1);
    return files()[0];
  }
};

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

template <class F> std::string stderr_of(const F& f) {
  const bench::TemporaryFolder folder;
  const std::string path = folder.file("stderr");
  const int saved = dup(2), file = open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, 2);
  f();
  dup2(saved, 2);
  close(saved);
  close(file);
  return read_text(path);
}

}  // namespace brrr::test
