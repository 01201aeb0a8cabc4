#pragma once
// A number given where a tensor could be.

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace brrr {

/// A host number with its category (bool, integer or floating), so that promotion follows
/// PyTorch's rule for Python numbers: an int tensor times 2.0 is float32, a float32 tensor times 2
/// stays float32. Constructible from arithmetic types only, so that a Tensor never becomes one.
class Scalar {
 public:
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Scalar(T v)  // NOLINT(google-explicit-constructor)
      : value_(static_cast<double>(v)),
        integer_(static_cast<int64_t>(std::is_floating_point_v<T> ? T{} : v)),
        kind_(std::is_same_v<T, bool> ? kBool
              : std::is_integral_v<T> ? kInt64
                                      : kFloat32) {}

  double to_double() const { return value_; }
  int64_t to_int() const { return kind_ == kFloat32 ? static_cast<int64_t>(value_) : integer_; }
  /// kBool, kInt64 or kFloat32: the dtype a tensor made of it has.
  DType dtype() const { return kind_; }
  bool is_floating() const { return kind_ == kFloat32; }

 private:
  double value_;
  int64_t integer_;
  DType kind_;
};

}  // namespace brrr
