#pragma once
// Kernels as PTX made by NVRTC, run by an interpreter that enforces rules of the PTX ISA, which the
// README lists.

#include <cstdint>
#include <memory>

#include "backends/cuda/driver.h"
#include "tests/emulator/block.h"
#include "tests/emulator/memory.h"

namespace brrr::emulator::ptx {

/// Whether BRRR_EMULATOR_PTX is set.
bool wanted();

/// Fails if the module brrr_cuda, or a library that it needs, is missing.
void expect_compiler();

/// Compiles kernel text to PTX with the module brrr_cuda, which calls NVRTC with its own options.
cuda::Failure compile(const char* source, const char* name, int major, int minor,
                      const char** image, size_t* bytes);
int compiler_version();

struct Program;
struct Kernel;

bool is_ptx(const void* image, size_t bytes);
std::shared_ptr<Program> parse(const void* image, size_t bytes);

/// The kernel, or null if there is none of that name.
const Kernel* find_kernel(Program& program, const char* name);
/// The kernel's limits, which a launch checks. It has no code: only the interpreter can run it.
const brrr_emulator::Kernel& description(const Kernel& kernel);

/// Runs all blocks of a launch. Fails, naming the kernel, block, thread and PTX line, if a rule is
/// broken.
void run(const Kernel& kernel, const Work& work, Memory& memory, unsigned long order);

}  // namespace brrr::emulator::ptx
