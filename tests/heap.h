#pragma once
// The heap of the tests' program (test_heap_calls.cpp). A sanitizer has its own.

#include <cstdint>

namespace brrr::test {

/// Of this thread: the calls so far, and the one that finds no memory; 0: none.
extern thread_local uint64_t heap_calls, heap_fails_at;

}  // namespace brrr::test
