#pragma once
// The sanitizer of this build (g++ and clang define it in different ways), and the number of cases
// that random tests try.

#include <algorithm>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#define BRRR_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define BRRR_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BRRR_ASAN 1
#elif __has_feature(thread_sanitizer)
#define BRRR_TSAN 1
#endif
#endif
#ifndef BRRR_ASAN
#define BRRR_ASAN 0
#endif
#ifndef BRRR_TSAN
#define BRRR_TSAN 0
#endif

namespace brrr::test {

/// Freed memory stays resident for a while, and tensor memory comes from malloc.
inline constexpr bool kAddressSanitizer = BRRR_ASAN;
/// ThreadSanitizer does not follow forked children of a process with threads.
inline constexpr bool kThreadSanitizer = BRRR_TSAN;

/// BRRR_LONG_TESTS=1: random tests take minutes.
inline bool long_tests() { return std::getenv("BRRR_LONG_TESTS") != nullptr; }
/// Under a sanitizer everything takes five to twenty times as long.
inline int random_cases(int usually, int in_long_tests) {
  if (long_tests()) return in_long_tests;
  return kAddressSanitizer || kThreadSanitizer ? std::max(1, usually / 4) : usually;
}

}  // namespace brrr::test
