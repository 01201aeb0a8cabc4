#include "tests/emulator/fiber.h"

#include <sys/mman.h>

#include <cstddef>

#include "core/check.h"

namespace brrr::emulator {

namespace {

constexpr size_t stack_bytes = 128 << 10, guard_bytes = 4 << 10;

}  // namespace

// A guard page below the stack turns an overflow into a fault.
void Fiber::make_stack() {
  void* p = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BRRR_CHECK(p != MAP_FAILED, "emulator: no memory for the stack of a thread");
  mprotect(p, guard_bytes, PROT_NONE);
  stack_ = static_cast<char*>(p) + guard_bytes;
}

#if defined(__x86_64__)

void Fiber::reset(void (*entry)(), unsigned colour) {
  if (!stack_) make_stack();
  // As if `entry` had been called: its address, then a return address that is never used.
  void** top = reinterpret_cast<void**>(stack_ + stack_bytes - colour % 32 * 128);
  top[-2] = reinterpret_cast<void*>(entry);
  top[-1] = nullptr;
  other_ = top - 2;
}

#else

void Fiber::reset(void (*entry)(), unsigned) {
  if (!stack_) make_stack();
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  makecontext(&own_, entry, 0);
}

void Fiber::resume() { swapcontext(&other_, &own_); }

void Fiber::yield() { swapcontext(&own_, &other_); }

#endif

}  // namespace brrr::emulator
