#pragma once
// A directory for a test's files, and what tests do with files.

#include <fstream>
#include <functional>
#include <string>

#include "core/error.h"
#include "tests/bench/measure/temporary.h"

namespace brrr::test {

struct TemporaryDirectory : bench::TemporaryFolder {
  size_t count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
  }
};

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The text of the brrr::Error that f throws.
inline std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace brrr::test
