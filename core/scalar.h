#pragma once
// A scalar given where a tensor could be.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace brrr {

/// A host scalar with its category (bool, integer or floating), so that promotion follows PyTorch's
/// rule for Python scalars: an int tensor times 2.0 is float32, a float32 tensor times 2 stays
/// float32. Constructible from arithmetic types only, so that a Tensor never becomes one.
class Scalar {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Scalar(T v) {  // NOLINT(google-explicit-constructor)
    if constexpr (std::is_integral_v<T>) {
      bits_ = static_cast<int64_t>(v);
      kind_ = std::is_same_v<T, bool> ? kBool : kInt64;
      if (v <= T{} || bits_ > 0) return;
    }
    // Floating, or an unsigned integer beyond int64.
    bits_ = std::bit_cast<int64_t>(static_cast<double>(v));
    kind_ = kFloat32;
  }

  double to_double() const {
    return is_floating() ? std::bit_cast<double>(bits_) : static_cast<double>(bits_);
  }
  int64_t to_int() const {
    return is_floating() ? static_cast<int64_t>(std::bit_cast<double>(bits_)) : bits_;
  }
  /// kBool, kInt64 or kFloat32: the dtype a tensor made of it has.
  DType dtype() const { return kind_; }
  bool is_floating() const { return kind_ == kFloat32; }

 private:
  // Two words, so that it is passed in registers: a load from memory that was just written in
  // pieces (no store forwarding) costs more than the rest of a call.
  int64_t bits_;  ///< The integer, or the double's.
  DType kind_;
};

}  // namespace brrr
