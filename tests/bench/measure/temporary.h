#pragma once

// A folder, an environment variable, a kernel cache for as long as something runs.

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace brrr::bench {

// A folder of its own that goes away.
struct TemporaryFolder {
  std::filesystem::path path;
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "brrr-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error(name + " cannot be made");
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code none;
    std::filesystem::remove_all(path, none);
  }
  TemporaryFolder(TemporaryFolder&& o) noexcept : path(std::exchange(o.path, {})) {}
  std::string file(const std::string& name) const { return (path / name).string(); }
};

// Sets a variable, or removes it.
struct Env {
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

// A kernel cache that is empty at first and that nobody else uses.
struct PrivateCache {
  TemporaryFolder folder;
  Env variable{"BRRR_CACHE_DIR", folder.path.c_str()};
};

}  // namespace brrr::bench
