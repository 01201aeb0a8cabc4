#pragma once
// Runs the blocks of a launch.

#include "tests/emulator/interface.h"

namespace brrr::emulator {

/// Of a block, static and dynamic together: what compute capability 9.0 has,
constexpr unsigned long most_shared_bytes = 227 << 10;
/// and another one, times 10.
constexpr unsigned long shared_bytes_of(unsigned long capability) {
  if (capability == 80 || capability == 87) return 163 << 10;
  return capability >= 90 && capability < 120 ? most_shared_bytes : 99 << 10;
}

struct Work {
  const brrr_emulator::Program* program;
  const brrr_emulator::Kernel* kernel;
  const void* params;
  brrr_emulator::Index grid, block;
  unsigned long shared_bytes;
};

/// Runs all blocks of a launch, one after the other. Fails when threads wait for others in vain,
/// or write behind their shared memory. Order: 0 ascending, else the seed of another one.
void run_blocks(const Work& work, unsigned long order);

/// What programs call.
extern const brrr_emulator::Runtime runtime;

}  // namespace brrr::emulator
