// The lower or upper triangle of matrices, in the last two dims.
#include <algorithm>
#include <functional>

#include "core/check.h"
#include "ops/kinds/pointwise.h"
#include "ops/library_ops.h"

namespace brrr {

namespace {

// Selects instead of multiplying by 0: a NaN outside gives 0. The gradient is the triangle of g.
template <class Within> struct Triangle {
  auto operator()(auto x, auto diagonal, auto row, auto column) const {
    return m::where(Within{}(column, row + diagonal), x, 0.0);
  }
  auto operator()(auto, auto diagonal, auto, auto g, auto row, auto column) const {
    return (*this)(g, diagonal, row, column);
  }
};
constexpr Triangle<std::less_equal<>> kLower;
constexpr Triangle<std::greater_equal<>> kUpper;
constexpr Integers<0b10, 2, 1> kPlaces;
const NumberOp tril_row{"tril", "elements up to a diagonal, else 0", {}, kPlaces, kLower, kLower};
const NumberOp triu_row{"triu", "elements from a diagonal on, else 0", {}, kPlaces, kUpper, kUpper};

Tensor triangle(const PointwiseOp& op, const Tensor& x, int64_t diagonal) {
  BRRR_CHECK(defined(op.name, x).dim() >= 2,
             "{}: takes matrices [.., rows, cols], got {}; unsqueeze a dim", op.name, describe(x));
  // Clamped, so that row + diagonal does not overflow.
  return PointwiseCall(op).add(x).add(std::clamp(diagonal, -x.size(-2), x.size(-1))).run();
}

}  // namespace

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle(tril_row, x, diagonal); }
Tensor triu(const Tensor& x, int64_t diagonal) { return triangle(triu_row, x, diagonal); }
Tensor Tensor::tril(int64_t diagonal) const { return brrr::tril(*this, diagonal); }
Tensor Tensor::triu(int64_t diagonal) const { return brrr::triu(*this, diagonal); }

}  // namespace brrr
