#pragma once
// A program for the CPU: vectors of 16 lanes, several of them side by side.

#include "ops/program/program.h"

namespace brrr::program {

/// What is handed over at launch: the address of a window's first element, of a control word, or of
/// the kernel's scratch memory; a row's length; or load_across() (ops/kinds/strided_matrix.h).
struct CpuArgument {
  enum Kind : uint8_t { Window, Number, Scratch, Length, Across } kind;
  int which = 0;  ///< Into the program's windows or numbers.
};
struct CpuKernel {
  std::string body;  ///< Function text after its name: "(char* const* a, long begin, long end) {".
  std::string last;  ///< The same, run once after that with 0, 0; empty: there is nothing to do.
  std::vector<std::string> functions;  ///< Definitions of what they call; equal ones are one.
  std::vector<CpuArgument> arguments;
  int64_t extent = 0;   ///< Of the dim that a launch splits.
  int64_t unit = 1;     ///< Elements of the space that one of it takes; the last may take fewer. 0
                        ///< if they are not in the space's order.
  int64_t grain = 1;    ///< Least part of it worth a thread.
  int64_t scratch = 0;  ///< Bytes of memory that it takes.
};
CpuKernel cpu_kernel(const Program& p);

/// What the program's text takes: windows in memory, then numbers that vary from step to step;
/// others are written into it.
std::vector<CpuArgument> cpu_arguments(const Program& p);

}  // namespace brrr::program
