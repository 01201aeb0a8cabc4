#pragma once
// What the emulator and the programs it compiles know of each other. This text is part of both, so
// it includes nothing.

namespace brrr_emulator {

struct Index {
  unsigned x, y, z;
};

/// A program's view of the thread that runs.
struct State {
  Index thread, block, threads, blocks;
  void* shared;  // the launch's dynamic shared memory
  const struct Runtime* runtime;
};

/// One lane's part of what a warp exchanges.
struct alignas(16) Slot {
  unsigned char bytes[32];
};

/// What the emulator does for a program. `line` is where the thread waits.
struct Runtime {
  void (*block_barrier)(int line);
  void (*warp_barrier)(int line);
  /// Waits until all 32 lanes have brought a value; returns their slots.
  const Slot* (*exchange)(const void* value, unsigned bytes, int line);
  void (*multiply_bf16)(float* c, const unsigned* a, const unsigned* b, int line);
  void (*multiply_f16)(float* c, const unsigned* a, const unsigned* b, int line);
};

/// A kernel runs either as a loop over a block's threads or as threads that wait for each other.
struct Kernel {
  const char* name;
  unsigned most_threads;
  unsigned long params_bytes;
  /// All threads of a block, beginning with `first` and going on by `step`, modulo their number.
  void (*loop)(const void* params, unsigned first, unsigned step);
  void (*thread)(const void* params);
};

/// What a program exports as `brrr_emulated_program`.
struct Program {
  State* state;
  const Kernel* const* kernels;
  const Kernel* const* kernels_end;
  char* shared;  // all __shared__ variables
  char* shared_end;
};

}  // namespace brrr_emulator
