#pragma once
// Kernels generated at run time: the host's C++ compiler builds their source, through a cache on
// disk. These functions are build, symbol and unload of the CPU's Backend.
//
// Environment, read on every build: BRRR_JIT=off (run no compiler), BRRR_CXX or CXX (the compiler),
// BRRR_CACHE_DIR (where built kernels are kept), BRRR_KEEP_SOURCE=1 (keep their source beside
// them), BRRR_JIT_FAIL=1 (every build fails, to test the fallback).

#include <string>

#include "core/backend.h"

namespace brrr::cpu {

// Builds extern "C" functions written against the prelude, or loads them from the cache (`cached`).
// A module is a handle of dlopen(), which is reference-counted: equal source gives the same handle.
// Throws Error with the first lines of the compiler's output, leaving nothing behind. Thread-safe;
// equal source is built once.
KernelModule* build(const std::string& source, bool& cached);

// The address of a function of the module. Throws Error if it has none of that name.
void* symbol(KernelModule* module, const char* name);

// Call once per `build`; the last call unmaps the code.
void unload(KernelModule* module) noexcept;

}  // namespace brrr::cpu
