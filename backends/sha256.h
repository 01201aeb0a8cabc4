#pragma once
// SHA-256 (FIPS 180-4): names cached kernels and detects damaged ones.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace brrr::jit {

class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  Sha256& bytes(const void* data, size_t size);
  // A length first, so that ("ab", "c") and ("a", "bc") differ.
  Sha256& field(std::string_view text);
  Digest finish();

 private:
  void block(const unsigned char* p);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char pending_[64];
  uint64_t total_ = 0;
};

// The first `count` bytes in hexadecimal.
std::string hex(const Sha256::Digest& digest, size_t count = 32);

}  // namespace brrr::jit
