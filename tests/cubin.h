#pragma once
// Registers and memory that kernels use on a GPU, read from their machine code: the figures of
// `ptxas -v` without compiling again.

#include <cstdint>
#include <string>
#include <vector>

namespace brrr::test {

/// A kernel, or a function that it calls and that was not inlined.
struct KernelResources {
  std::string name;
  int64_t stack = 0;  ///< Bytes per thread: dynamically indexed arrays, spilled registers.
};
/// Parses a cubin, an ELF file; empty for PTX.
std::vector<KernelResources> resources_of(const std::string& cubin);

/// A larger stack means a defective kernel. The C library's own float64 sin, cos and tan use 40
/// bytes; ptxas itself refuses more than 48 KB of static shared memory.
inline constexpr int64_t kMostStack = 64;

}  // namespace brrr::test
