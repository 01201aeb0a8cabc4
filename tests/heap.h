#pragma once
// The heap of the tests' program (test_heap_calls.cpp). Sanitizers have their own.

#include <cstdint>

namespace brrr::test {

/// Of this thread: the number of calls so far, and the call that fails with no memory (0: none).
extern thread_local uint64_t heap_calls, heap_fails_at;

}  // namespace brrr::test
