#include "backends/module_path.h"

#include <dlfcn.h>
#include <fmt/format.h>
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

const void* open_boundary(const std::string& file, const char* variable, const char* symbol,
                          int abi, std::string& why) {
  std::string error;  // dlerror() of the most relevant attempt.
  for (const std::string& path : candidates(file, variable)) {
    // Never closed: threads of the libraries that the module loads outlive main.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* text = dlerror();
      if (error.empty() || access(path.c_str(), F_OK) == 0) error = text ? text : "unknown reason";
      continue;
    }
    const auto get = reinterpret_cast<const int* (*)()>(dlsym(library, symbol));
    const int* const found = get ? get() : nullptr;
    if (found && *found == abi) return found;
    why = path + " is not a brrr module";
    if (found)
      why = fmt::format("{} is of another build (interface {}, wanted {})", path, *found, abi);
    return nullptr;
  }
  why = fmt::format("the module {} cannot be loaded ({})", file, error);
  return nullptr;
}

}  // namespace brrr
