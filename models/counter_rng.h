#pragma once
// Random numbers for data: shuffling and generated examples never depend on brrr's global stream.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace brrr::data {

/// SplitMix64 (Steele, Lea and Flood, 2014) over a counter: the numbers of one (seed, stream) pair.
class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream) : state_(mix(seed) ^ mix(~stream)) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  /// Uniform in [0, n), by Lemire's multiplication; the bias is below n / 2^64.
  uint64_t below(uint64_t n) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>(static_cast<Wide>(next()) * n >> 64);
  }
  /// Uniform in [lo, hi).
  double uniform(double lo, double hi) {
    return lo + (hi - lo) * static_cast<double>(next() >> 11) * 0x1p-53;
  }
  /// Standard normal (Box and Muller).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log1p(-uniform(0, 1)));
    return radius * std::cos(2 * std::numbers::pi * uniform(0, 1));
  }

 private:
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

}  // namespace brrr::data
