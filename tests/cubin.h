#pragma once
// What kernels take of a GPU's registers and memory, read from their machine code: what `ptxas -v`
// tells, without compiling again.

#include <cstdint>
#include <string>
#include <vector>

namespace brrr::test {

/// A kernel, or a function that it calls and that has not been inlined.
struct KernelResources {
  std::string name;
  int64_t stack = 0;  ///< Bytes of each thread: arrays that are indexed, spilled registers.
};
/// Of a cubin, an ELF file; nothing of PTX.
std::vector<KernelResources> resources_of(const std::string& cubin);

/// More than this is a kernel gone wrong. The C library's own sin, cos and tan of float64 have 40
/// bytes; ptxas itself refuses more than 48 KB of static shared memory.
inline constexpr int64_t kMostStack = 64;

}  // namespace brrr::test
