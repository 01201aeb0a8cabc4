#pragma once
// Threads of a block run as fibers: each has its own stack and runs until it yields.

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace brrr::emulator {

class Fiber {
 public:
  /// Makes the fiber start at `entry`, discarding what it ran before. `entry` must not return; it
  /// ends with a last yield(). `colour` spreads stacks over the sets of the cache.
  void reset(void (*entry)(), unsigned colour);
  /// Runs the fiber until it yields.
  void resume();
  /// Called by the fiber: returns to the caller of resume().
  void yield();

 private:
  void make_stack();

  char* stack_ = nullptr;  // never unmapped: fibers live as long as the process
#if defined(__x86_64__)
  void swap();
  void* other_ = nullptr;  // the stack pointer of the side that does not run
#else
  ucontext_t own_, other_;
#endif
};

#if defined(__x86_64__)

// Inline, because processors predict the target of a `ret` from the calls before it: a return on
// another stack than its call's is mispredicted, which costs as much as all the rest.
__attribute__((always_inline)) inline void Fiber::swap() {
  void** other = &other_;
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n"  // the ABI's red zone may be in use
      "pushq %%rbp\n"
      "leaq 1f(%%rip), %%rax\n"
      "pushq %%rax\n"
      "movq %%rsp, %%rax\n"
      "movq (%0), %%rsp\n"
      "movq %%rax, (%0)\n"
      "popq %%rax\n"
      "jmpq *%%rax\n"
      "1:\n"
      "popq %%rbp\n"
      "leaq 128(%%rsp), %%rsp\n"
      : "+D"(other)
      :
      : "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#if defined(__AVX512F__)
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25",
        "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "k0", "k1", "k2", "k3", "k4", "k5",
        "k6", "k7",
#endif
        "memory", "cc");
}

__attribute__((always_inline)) inline void Fiber::resume() { swap(); }

__attribute__((always_inline)) inline void Fiber::yield() { swap(); }

#endif

}  // namespace brrr::emulator
