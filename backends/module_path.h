#pragma once
// Modules of ours that are opened when they are asked for.

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace brrr {

struct OpenModule {
  void* library = nullptr;  ///< Of dlopen(), never to be closed.
  std::string path;
  std::string why;  ///< There is none that can be loaded: the loader's words.
};
/// What `variable` in the environment names, else the file beside the program, beside the library
/// that this code is in, or where the loader looks.
OpenModule open_module(const std::string& file, const char* variable);

/// What the function `symbol` of such a module returns, a Boundary of interface `abi`; null, and
/// why, where there is none.
template <class Boundary>
const Boundary* open_boundary(const std::string& file, const char* variable, const char* symbol,
                              int abi, std::string& why) {
  const OpenModule m = open_module(file, variable);
  if (!m.library) {
    why = fmt::format("the module {} cannot be loaded ({})", file, m.why);
    return nullptr;
  }
  const auto get = reinterpret_cast<const Boundary* (*)()>(dlsym(m.library, symbol));
  const Boundary* b = get ? get() : nullptr;
  if (b && b->abi == abi) return b;
  why = m.path + " is no module of brrr";
  if (b) why = fmt::format("{} is of another build (interface {}, wanted {})", m.path, b->abi, abi);
  return nullptr;
}

}  // namespace brrr
