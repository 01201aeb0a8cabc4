#pragma once
// Prints a program as plain C, one statement and one element after the other: the shortest target,
// which shares no function with the library's and so interprets programs independently.

#include "ops/program/program.h"

namespace brrr::program {

/// The definition of `extern "C" void name(char* const* a)` with the arguments of the CPU's kernel
/// (cpu_arguments()), which runs the program once over its whole space. Text for the host compiler;
/// scalar_prelude() must precede the first one.
std::string scalar_text(const Program& p, const std::string& name);
const char* scalar_prelude();

}  // namespace brrr::program
