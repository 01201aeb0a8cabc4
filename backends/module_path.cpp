#include "backends/module_path.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <vector>

namespace brrr {

static std::string folder_of(const std::string& path) {
  return path.substr(0, path.find_last_of('/') + 1);
}

static std::vector<std::string> candidates(const std::string& file, const char* variable) {
  if (const char* own = std::getenv(variable); own && *own) return {own};
  std::vector<std::string> all;
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self);
  if (n > 0) all.push_back(folder_of(std::string(self, static_cast<size_t>(n))) + file);
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&folder_of), &here) && here.dli_fname) {
    all.push_back(folder_of(here.dli_fname) + file);
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
