#pragma once
// Modules of ours that are opened when they are asked for.

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

}  // namespace brrr
