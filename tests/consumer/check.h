#pragma once
#include <brrr/brrr.h>

#include <cstdio>
#include <string>

// The message of the error that f throws.
template <class F> std::string error_of(const F& f) {
  try {
    f();
  } catch (const brrr::Error& e) {
    return e.what();
  }
  return "";
}

#define CHECK(...)                                                      \
  if (!(__VA_ARGS__)) {                                                 \
    std::printf("line %d: %s does not hold\n", __LINE__, #__VA_ARGS__); \
    return 1;                                                           \
  }
