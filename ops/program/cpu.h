#pragma once
// A program for the CPU: vectors of 16 lanes, several of them side by side.

#include "ops/program/program.h"

namespace brrr::program {

/// An address that is handed over at launch: of a window's first element, or of a control word.
struct CpuArgument {
  bool number;
  int which;  ///< Into the program's windows or numbers.
};
struct CpuKernel {
  std::string body;  ///< Function text after its name: "(char* const* a, long begin, long end) {".
  std::vector<CpuArgument> arguments;
  int64_t extent = 0;  ///< Of the dim that a launch splits.
  int64_t grain = 1;   ///< Least part of it worth a thread.
};
CpuKernel cpu_kernel(const Program& p);

/// What the program's text takes: windows in memory, then numbers that vary from step to step;
/// others are written into it.
std::vector<CpuArgument> cpu_arguments(const Program& p);

}  // namespace brrr::program
