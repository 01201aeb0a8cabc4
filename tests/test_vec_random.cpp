// The random words and normals of the CPU vector prelude, against published answers and formulas.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "ops/vocabulary/vec_random.h"

namespace vx = brrr::vx;

namespace {

// The generator as published by its authors, one block at a time.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::uint32_t k0,
                                    std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t p0 = 0xd2511f53ull * c[0], p1 = 0xcd9e8d57ull * c[2];
    c = {std::uint32_t(p1 >> 32) ^ c[1] ^ k0, std::uint32_t(p1),
         std::uint32_t(p0 >> 32) ^ c[3] ^ k1, std::uint32_t(p0)};
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c;
}

}  // namespace

TEST_CASE("vec: Philox gives Random123's known answers") {
  using Words = std::array<std::uint32_t, 4>;
  const vx::u32 zero = vx::philox16(0, 0, 0);
  CHECK(Words{zero[0], zero[1], zero[2], zero[3]} ==
        Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) ==
        Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u) ==
        Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
  const std::uint64_t seed = 0x299f31d0a4093822u, offset = 0x0370734413198a2eu;
  for (std::uint64_t index :
       {std::uint64_t{0}, std::uint64_t{16}, std::uint64_t{1} << 34, 0x85a308d3243f6a80u}) {
    vx::u32 got = vx::philox16(index, seed, offset);
    for (std::uint32_t k = 0; k < 16; ++k) {
      std::uint64_t block = index / 4 + k / 4;
      Words want = philox({std::uint32_t(block), std::uint32_t(block >> 32), std::uint32_t(offset),
                           std::uint32_t(offset >> 32)},
                          std::uint32_t(seed), std::uint32_t(seed >> 32));
      CHECK(std::uint32_t(got[k]) == want[k % 4]);
    }
  }
  CHECK(vx::uniform01(vx::splat(0xffffffffu))[3] == 1 - 0x1p-24f);
  CHECK(vx::uniform01(vx::splat(0xffu))[3] == 0);
}

TEST_CASE("vec: normals are Box-Muller of their pairs, with the right moments") {
  double sum = 0, square = 0, worst = 0;
  const int n = 1 << 18;
  for (int i = 0; i < n; i += 16) {
    vx::f32 z = vx::normal16(static_cast<unsigned long>(i), 42, 3);
    vx::f32 u = vx::uniform01(vx::philox16(static_cast<unsigned long>(i), 42, 3));
    for (int k = 0; k < 16; ++k) {
      double r = std::sqrt(-2 * std::log(1 - double(u[k & ~1]))), a = 2 * M_PI * u[k | 1];
      worst = std::max(worst, std::fabs(z[k] - r * (k % 2 ? std::sin(a) : std::cos(a))));
      sum += z[k];
      square += double(z[k]) * z[k];
    }
  }
  CHECK(worst < 2e-6);
  CHECK(std::fabs(sum / n) < 0.01);
  CHECK(std::fabs(square / n - 1) < 0.01);
}
