#pragma once
// Runs the blocks of a launch.

#include "tests/emulator/interface.h"

namespace brrr::emulator {

/// Most shared memory of a block, static and dynamic together, for compute capability 9.0...
constexpr unsigned long most_shared_bytes = 227 << 10;
/// ...and for any, given as 10 times its number.
constexpr unsigned long shared_bytes_of(unsigned long capability) {
  if (capability == 80 || capability == 87) return 163 << 10;
  return capability >= 90 && capability < 120 ? most_shared_bytes : 99 << 10;
}

struct Work {
  const brrr_emulator::Program* program;
  const brrr_emulator::Kernel* kernel;
  const void* params;
  brrr_emulator::Index grid, block;
  unsigned long shared_bytes;  ///< Dynamic shared memory of a block.
  unsigned long shared_limit;  ///< Most static and dynamic shared memory together.
};

/// Runs all blocks of a launch, one after the other. Fails on a deadlock or a divergent barrier, or
/// if threads write behind their shared memory. `order`: 0 for ascending, else a seed.
void run_blocks(const Work& work, unsigned long order);

/// The functions that programs call.
extern const brrr_emulator::Runtime runtime;

}  // namespace brrr::emulator
