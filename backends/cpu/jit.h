#pragma once
// Kernels generated at run time: text to machine code by the host's C++ compiler, through a cache
// on disk. These are build, symbol and unload of the CPU's Backend.
//
// Environment, read on every build: BRRR_JIT=off (no compiler is run), BRRR_CXX or CXX (which
// compiler), BRRR_CACHE_DIR (where built kernels are kept), BRRR_KEEP_SOURCE=1 (their text is kept
// beside them), BRRR_JIT_FAIL=1 (every build fails, to try what happens then).

#include <string>

#include "core/backend.h"

namespace brrr::cpu {

// Builds extern "C" functions written against the prelude, or finds them built. A module is what
// dlopen() gives, which counts those of equal text as one. Throws Error, with the first lines of
// what the compiler said, having kept nothing. May be called by several threads; equal text is then
// built once.
KernelModule* build(const std::string& source, bool& cached);

// The address of a function of the module. Throws Error if it has none of that name.
void* symbol(KernelModule* module, const char* name);

// Once for each `build`; the code is gone after the last of them.
void unload(KernelModule* module) noexcept;

}  // namespace brrr::cpu
