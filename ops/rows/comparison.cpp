// Rows: comparison and logic. Results are bool and have no gradient.
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

const NumberOp logical_and_row{
    "logical_and", "a and b", {}, [](auto a, auto b) { return (a != 0.0) & (b != 0.0); }};
const NumberOp logical_or_row{
    "logical_or", "a or b", {}, [](auto a, auto b) { return (a != 0.0) | (b != 0.0); }};
const NumberOp logical_xor_row{"logical_xor", "a or b, not both", {}, [](auto a, auto b) {
                                 return ((a != 0.0) & (b == 0.0)) | ((a == 0.0) & (b != 0.0));
                               }};
const NumberOp logical_not_row{"logical_not", "not a", {}, [](auto a) { return a == 0.0; }};
const PointwiseOp isnan_row{"isnan", "x is not a number", {}, [](auto x) { return m::isnan(x); }};
const PointwiseOp isfinite_row{
    "isfinite", "x is neither infinite nor NaN", {}, [](auto x) { return m::isfinite(x); }};

}  // namespace

#define BRRR_COMPARISON(name, holds)                                                         \
  static const NumberOp name##_row{#name, #holds, {}, [](auto a, auto b) { return holds; }}; \
  Tensor name(const Tensor& a, const Tensor& b) { return call(name##_row, a, b); }           \
  Tensor name(const Tensor& a, Scalar b) { return call(name##_row, a, b); }
BRRR_COMPARISON(lt, a < b)
BRRR_COMPARISON(le, a <= b)
BRRR_COMPARISON(gt, a > b)
BRRR_COMPARISON(ge, a >= b)
BRRR_COMPARISON(eq, a == b)
BRRR_COMPARISON(ne, a != b)
#undef BRRR_COMPARISON
Tensor logical_and(const Tensor& a, const Tensor& b) { return call(logical_and_row, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return call(logical_or_row, a, b); }
Tensor logical_xor(const Tensor& a, const Tensor& b) { return call(logical_xor_row, a, b); }
Tensor logical_not(const Tensor& a) { return call(logical_not_row, a); }
Tensor isnan(const Tensor& a) { return call(isnan_row, a); }
Tensor isfinite(const Tensor& a) { return call(isfinite_row, a); }

}  // namespace brrr
