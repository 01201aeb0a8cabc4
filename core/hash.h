#pragma once

#include <cstddef>
#include <cstdint>

namespace brrr {

/// FNV-1a (Fowler, Noll and Vo), of bytes or of larger words: the same on every machine.
struct Fnv {
  uint64_t hash = 0xcbf29ce484222325u;

  void add(uint64_t word) { hash = (hash ^ word) * 0x100000001b3u; }
  void add(const void* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) add(uint64_t{static_cast<const unsigned char*>(bytes)[i]});
  }
};

}  // namespace brrr
