#pragma once
// A directory for a test's files, and file helpers.

#include <fstream>
#include <string>

#include "tests/bench/measure/temporary.h"
#include "tests/error_text.h"

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

}  // namespace brrr::test
