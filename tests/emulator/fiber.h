#pragma once
// Threads of a block are fibers: each has a stack of its own and runs until it gives way.

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace brrr::emulator {

class Fiber {
 public:
  /// Sets the fiber to the start of `entry`, which must not return but give way for good. What it
  /// was doing before is forgotten. `colour` spreads stacks over the sets of the cache.
  void reset(void (*entry)(), unsigned colour);
  /// Runs the fiber until it gives way.
  void resume();
  /// Called by the fiber: goes on in resume() of whoever resumed it.
  void give_way();

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

// Inline, since a processor predicts a return from the calls before it: each return on another
// stack than the call's costs as much as all the rest.
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

__attribute__((always_inline)) inline void Fiber::give_way() { swap(); }

#endif

}  // namespace brrr::emulator
