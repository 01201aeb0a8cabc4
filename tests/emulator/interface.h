#pragma once
// The interface between the emulator and the programs it compiles. This text is part of both, so it
// includes nothing.

namespace brrr_emulator {

struct Index {
  unsigned x, y, z;
};

/// The running thread, as its program sees it.
struct State {
  Index thread, block, threads, blocks;
  void* shared;  // the launch's dynamic shared memory
  const struct Runtime* runtime;
};

/// One lane's value in an exchange within a warp.
struct alignas(16) Slot {
  unsigned char bytes[32];
};

/// What programs call in the emulator. `line` is the source line where the thread waits.
struct Runtime {
  void (*block_barrier)(int line);
  void (*warp_barrier)(int line);
  /// Waits until all 32 lanes have passed a value; returns their slots.
  const Slot* (*exchange)(const void* value, unsigned bytes, int line);
  void (*multiply_bf16)(float* c, const unsigned* a, const unsigned* b, int line);
  void (*multiply_f16)(float* c, const unsigned* a, const unsigned* b, int line);
};

/// A KERNEL has `loop` and a BLOCK_KERNEL has `thread`; the other is null. For PTX both are.
struct Kernel {
  const char* name;
  unsigned most_threads;
  unsigned long params_bytes;
  /// Runs all threads of a block, starting with `first`, in steps of `step` modulo their number.
  void (*loop)(const void* params, unsigned first, unsigned step);
  void (*thread)(const void* params);
};

/// A program exports one as `brrr_emulated_program`.
struct Program {
  State* state;
  const Kernel* const* kernels;
  const Kernel* const* kernels_end;
  char* shared;  // all __shared__ variables
  char* shared_end;
};

}  // namespace brrr_emulator
