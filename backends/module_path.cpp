#include "backends/module_path.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace brrr {

namespace fs = std::filesystem;

static std::vector<std::string> candidates(const std::string& file, const char* variable) {
  if (const char* own = std::getenv(variable); own && *own) return {own};
  std::vector<std::string> all;
  std::error_code none;
  const fs::path self = fs::read_symlink("/proc/self/exe", none);
  if (!none) all.push_back(self.parent_path() / file);
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&candidates), &here) && here.dli_fname) {
    all.push_back(fs::path(here.dli_fname).parent_path() / file);
  }
  all.push_back(file);
  return all;
}

OpenModule open_module(const std::string& file, const char* variable) {
  OpenModule m;
  for (const std::string& path : candidates(file, variable)) {
    // Threads of what it opens in turn outlive main.
    m.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (m.library) {
      m.path = path;
      return m;
    }
    const char* said = dlerror();
    if (m.why.empty() || access(path.c_str(), F_OK) == 0) m.why = said ? said : "unknown reason";
  }
  return m;
}

}  // namespace brrr
