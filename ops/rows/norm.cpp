// Layer norm and root-mean-square norm. The rows return their statistics for the gradients.
#include "core/check.h"
#include "ops/kinds/row.h"
#include "ops/nn_ops.h"

namespace brrr {

namespace {

// The output does not change when x moves along a row of ones or along the normalized row h: the
// gradient subtracts the mean of the weighted gradient and its projection on h.
const RowOp layer_norm_row{
    "layer_norm",
    "(x - mean) / sqrt(var + eps) * weight + bias over trailing dims",
    Operands<Operand::Each, Operand::Weight, Operand::Bias, Operand::Scalar>{},
    {"x", "weight", "bias"},
    [](auto x, auto weight, auto bias, auto eps) {
      const auto mean = row::mean(x);
      const auto d = x - mean;
      const auto rstd = m::rsqrt(row::mean(m::square(d)) + eps);
      return std::tuple{d * rstd * weight + bias, mean, rstd};
    },
    [](auto x, auto weight, auto, auto, auto, auto mean, auto rstd, auto g) {
      const auto h = (x - mean) * rstd;
      const auto w = g * weight;
      return std::tuple{(w - row::mean(w) - h * row::mean(w * h)) * rstd, row::over_rows(g * h),
                        row::over_rows(g)};
    }};

const RowOp rms_norm_row{
    "rms_norm",
    "x / sqrt(mean(x^2) + eps) * weight over trailing dims",
    Operands<Operand::Each, Operand::Weight, Operand::Scalar>{},
    {"x", "weight"},
    [](auto x, auto weight, auto eps) {
      const auto rstd = m::rsqrt(row::mean(m::square(x)) + eps);
      return std::tuple{x * rstd * weight, rstd};
    },
    [](auto x, auto weight, auto, auto, auto rstd, auto g) {
      const auto h = x * rstd;
      const auto w = g * weight;
      return std::tuple{(w - h * row::mean(w * h)) * rstd, row::over_rows(g * h)};
    }};

void check_normalized(const char* op, const Tensor& x, const IntList& normalized) {
  const int n = normalized.size();
  const IntList sizes = defined(op, x).sizes();
  BRRR_CHECK(
      n > 0 && n <= x.dim() && IntList(sizes.end() - n, static_cast<size_t>(n)) == normalized,
      "{}: the normalized shape {} is not the trailing sizes of {}; give the sizes of its "
      "last dims",
      op, to_string(normalized), describe(x));
}

}  // namespace

Tensor layer_norm(const Tensor& x, const IntList& normalized, const Tensor& weight,
                  const Tensor& bias, double eps) {
  check_normalized("layer_norm", x, normalized);
  return call(layer_norm_row, {x, weight, bias}, RowAttrs{normalized.size()}, eps);
}

Tensor rms_norm(const Tensor& x, const IntList& normalized, const Tensor& weight, double eps) {
  check_normalized("rms_norm", x, normalized);
  return call(rms_norm_row, {x, weight}, RowAttrs{normalized.size()}, eps);
}

}  // namespace brrr
