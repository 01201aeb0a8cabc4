#pragma once
// Modules of ours that are opened when they are asked for.

#include <string>

namespace brrr {

/// What the function `symbol` of a module returns: a struct that begins with an int, its interface,
/// which is to be `abi`. Null, and why, where there is none. The module is what `variable` in the
/// environment names, else the file beside the program, beside the library that this code is in, or
/// where the loader looks; it is never closed.
const void* open_boundary(const std::string& file, const char* variable, const char* symbol,
                          int abi, std::string& why);

}  // namespace brrr
