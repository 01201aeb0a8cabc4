#pragma once
// A program as a kernel for the CPU: vectors of 16 lanes, several per loop body.

#include "ops/program/program.h"

namespace brrr::program {

/// An argument of a launch: the address of a window's first element, a control word or the kernel's
/// scratch memory; a row's length; or load_transposed_block() (ops/kinds/strided_matrix.h).
struct CpuArgument {
  enum Kind : uint8_t { Window, Number, Scratch, Length, Across } kind;
  int which = 0;  ///< Index into the program's windows or numbers.
};
struct CpuKernel {
  std::string body;  ///< Function text after its name: "(char* const* a, long begin, long end) {".
  std::string last;  ///< The same, run once after the body with 0, 0; empty: not needed.
  std::vector<std::string> functions;  ///< Functions that they call; equal texts are one function.
  std::vector<CpuArgument> arguments;
  int64_t extent = 0;   ///< Size of the dim that a launch splits.
  int64_t unit = 1;     ///< Elements of the space per index of it; the last may have fewer. 0 if
                        ///< they are not in the space's order.
  int64_t grain = 1;    ///< Least part of `extent` worth a thread.
  int64_t scratch = 0;  ///< Bytes of scratch memory.
};
CpuKernel cpu_kernel(const Program& p);

/// The arguments of the program's text: windows in memory, then numbers that vary from step to
/// step; the others are literals in the text.
std::vector<CpuArgument> cpu_arguments(const Program& p);

}  // namespace brrr::program
