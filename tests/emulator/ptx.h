#pragma once
// The kernels' PTX instead of their text: made by NVRTC, run by an interpreter that enforces the
// rules of the PTX ISA. The README says which.

#include <cstdint>
#include <memory>

#include "backends/cuda/driver.h"
#include "tests/emulator/block.h"
#include "tests/emulator/memory.h"

namespace brrr::emulator::ptx {

/// Whether BRRR_EMULATOR_PTX asks for it.
bool wanted();

/// Fails where the module for GPUs or what it needs is not there.
void expect_compiler();

/// Kernel text to PTX, by the compiler of the module for GPUs with its own options.
cuda::Failure compile(const char* source, const char* name, int major, int minor,
                      const char** image, size_t* bytes);
int compiler_version();

struct Program;
struct Kernel;

bool is_ptx(const void* image, size_t bytes);
std::shared_ptr<Program> parse(const void* image, size_t bytes);

/// The kernel, or null if there is none of that name.
const Kernel* find_kernel(Program& program, const char* name);
/// What a launch checks; it can be run by the interpreter only.
const brrr_emulator::Kernel& description(const Kernel& kernel);

/// Runs all blocks of a launch. Fails with the kernel, block, thread and line of PTX where a rule
/// is broken.
void run(const Kernel& kernel, const Work& work, Memory& memory, unsigned long order);

}  // namespace brrr::emulator::ptx
