#pragma once
// Threads of a block are fibers: each has a stack of its own and runs until it gives way.

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <cstddef>

namespace brrr::emulator {

class Fiber {
 public:
  /// Sets the fiber to the start of `entry`, which must not return but leave for good. What it was
  /// doing before is forgotten. `colour` spreads stacks over the sets of the cache.
  void reset(void (*entry)(), unsigned colour);
  /// Runs the fiber until it gives way.
  void resume();
  /// Called by the fiber: goes on in resume() of whoever resumed it.
  void give_way();

 private:
  void make_stack();

  char* stack_ = nullptr;  // never unmapped: fibers live as long as the process
#if defined(__x86_64__)
  void* here_ = nullptr;  // the stack pointer of the side that does not run
#else
  ucontext_t own_, other_;
#endif
};

}  // namespace brrr::emulator
