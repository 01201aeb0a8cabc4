#pragma once
// What tests of generated kernels share: a cache of their own, files, the environment.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace brrr::test {

namespace fs = std::filesystem;

struct Env {  // sets a variable, or removes it, until the end of the test
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

inline std::string make_temp() {
  std::string path = fs::temp_directory_path() / "brrr-test-jit-XXXXXX";
  REQUIRE(mkdtemp(path.data()));
  return path;
}

struct TempCache {  // an empty cache, and nothing in the environment that tests depend on
  std::string dir = make_temp();
  Env cache{"BRRR_CACHE_DIR", dir.c_str()};
  Env jit{"BRRR_JIT", nullptr}, fail{"BRRR_JIT_FAIL", nullptr}, keep{"BRRR_KEEP_SOURCE", nullptr};
  ~TempCache() { fs::remove_all(dir); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().string());
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

}  // namespace brrr::test
