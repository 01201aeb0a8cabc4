#pragma once
// Opens brrr's optional shared modules (CUDA, NCCL, MPI) on first use.

#include <string>

namespace brrr {

/// Opens a module and returns the result of its function `symbol`: a struct whose first member is
/// an int, the interface version, which must equal `abi`. On failure returns null and sets `why`.
/// The module is the path in environment variable `variable`, else `file` beside the program,
/// beside the library that contains this code, or on the loader's search path. It is never closed.
const void* open_boundary(const std::string& file, const char* variable, const char* symbol,
                          int abi, std::string& why);

}  // namespace brrr
