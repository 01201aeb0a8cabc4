// Losses, reduced to the mean or the sum of their parts, or not reduced.
#include "core/autocast.h"
#include "core/check.h"
#include "ops/kinds/row.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// Rows return the maximum and sum(exp(x - max)) instead of one logsumexp: added to a large maximum,
// the logarithm of the sum would lose its digits.
//
// With d = x - max, L = log(sum(exp(d))) and smoothing e over C classes, a row's loss is
// L - (hit d[id] + miss sum(d)) where hit is 1 - e and miss e / C, as the targets sum to 1. Without
// smoothing the loss reads d[id] only, so that other classes may have logits of -inf.
template <bool smooth> struct RowCrossEntropy {
  template <class X, class Id, class S> auto operator()(X x, Id id, S hit, S miss) const {
    const auto max = m::constant(row::max(x));
    const auto d = x - max;
    const auto sum = row::sum(m::exp(d));
    const auto loss = [&](const auto& wanted) {
      return m::where(row::counts(id), m::log(sum) - wanted, 0.0);
    };
    const auto at_id = row::pick(x, id) - max;
    if constexpr (smooth)
      return std::tuple{loss(at_id * hit + row::sum(d) * miss), max, sum};
    else
      return std::tuple{loss(at_id), max, sum};
  }
};
// The number of rows that count is an operand: the gradient then depends on no sum over the rows,
// and one kernel can compute both.
template <bool smooth> struct CrossEntropy {
  template <class X, class Id, class N, class S>
  auto operator()(X x, Id id, N count, S hit, S miss) const {
    const auto [loss, max, sum] = RowCrossEntropy<smooth>{}(x, id, hit, miss);
    return std::tuple{row::total(loss) / count, max, sum};
  }
};
// (softmax - targets) * g; 0 in ignored rows. The softmax does not depend on the maximum that it
// subtracts, so max is constant to second derivatives.
constexpr auto row_cross_entropy_gradient = [](auto x, auto id, auto hit, auto miss, auto, auto max,
                                               auto sum, auto g) {
  const auto scale = 1.0 / sum;
  const auto p = m::exp(x - m::constant(max)) * scale;
  const auto target = m::where(row::is_at(id), hit + miss, miss);
  return m::where(row::counts(id), (p - target) * g, 0.0);
};
constexpr auto cross_entropy_gradient = [](auto x, auto id, auto count, auto hit, auto miss,
                                           auto loss, auto max, auto sum, auto g) {
  return row_cross_entropy_gradient(x, id, hit, miss, loss, max, sum, g / m::max(count, 1.0));
};

using RowCrossEntropyOperands =
    Operands<Operand::Each, Operand::Id, Operand::Scalar, Operand::Scalar>;
const RowOp row_cross_entropy_row{"row_cross_entropy",       "-log softmax(logits)[i, ids[i]]",
                                  RowCrossEntropyOperands{}, {"logits", "ids"},
                                  RowCrossEntropy<false>{},  row_cross_entropy_gradient};
const RowOp smooth_row_cross_entropy_row{
    "smooth_row_cross_entropy", "row_cross_entropy with label smoothing",
    RowCrossEntropyOperands{},  {"logits", "ids"},
    RowCrossEntropy<true>{},    row_cross_entropy_gradient};

using CrossEntropyOperands =
    Operands<Operand::Each, Operand::Id, Operand::Number, Operand::Scalar, Operand::Scalar>;
const RowOp cross_entropy_row{"cross_entropy",        "mean of row_cross_entropy over counted rows",
                              CrossEntropyOperands{}, {"logits", "ids", "count"},
                              CrossEntropy<false>{},  cross_entropy_gradient};
const RowOp smooth_cross_entropy_row{"smooth_cross_entropy", "cross_entropy with label smoothing",
                                     CrossEntropyOperands{}, {"logits", "ids", "count"},
                                     CrossEntropy<true>{},   cross_entropy_gradient};

// --- the others ----------------------------------------------------------------------------------

// A row of its own: composed of ops, max(x, 0) + log1p(exp(-|x|)) has a wrong gradient at 0.
const PointwiseOp bce_with_logits_row{
    "bce_with_logits",
    "max(x, 0) - x * t + log1p(exp(-|x|)), by element",
    {},
    [](auto x, auto t) { return m::max(x, 0.0) - x * t + m::log1p(m::exp(-m::abs(x))); },
    [](auto x, auto t, auto, auto g) { return (m::sigmoid(x) - t) * g; },
    [](auto x, auto, auto, auto g) { return -x * g; }};

void check_pair(const char* op, const Tensor& a, const Tensor& b) {
  BRRR_CHECK(a.defined() && b.defined(), "{}: an operand is undefined; assign one first", op);
  BRRR_CHECK(a.sizes() == b.sizes(), "{}: shapes differ: {} and {}; reshape or expand one", op,
             to_string(a.sizes()), to_string(b.sizes()));
}
Tensor reduced(const Tensor& parts, Reduction how) {
  return how == Reduction::None ? parts : how == Reduction::Sum ? sum(parts) : mean(parts);
}
// Bool, which has no subtraction, takes the other's dtype. Autocast widens losses, unreduced too.
Tensor operand(const Tensor& x, const Tensor& other) {
  const DType t = x.dtype() == kBool ? other.dtype() : x.dtype();
  return x.to(autocast_dtype() != kFloat32 && is_floating(t) ? compute_type(t) : t);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& ids, const CrossEntropyOptions& options) {
  BRRR_CHECK(logits.defined() && ids.defined(),
             "cross_entropy: an operand is undefined; assign one first");
  BRRR_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
             "cross_entropy: label_smoothing must be in [0, 1], got {}", options.label_smoothing);
  const TensorImpl &x = *logits.impl(), &at = *ids.impl();
  BRRR_CHECK(at.dtype == kInt64, "cross_entropy: takes int64 class ids, got {}; {}", describe(&at),
             is_floating(at.dtype)
                 ? "class probabilities are not supported, give ids or use log_softmax"
                 : "convert with to(kInt64)");
  BRRR_CHECK(x.ndim == 2 && at.ndim == 1 && x.sizes[0] == at.sizes[0],
             "cross_entropy: takes logits [n, classes] and ids [n], got {} and {}; flatten other "
             "dims with reshape",
             describe(&x), describe(&at));
  const double e = options.label_smoothing, miss = e / static_cast<double>(x.sizes[1]);
  if (options.reduction != Reduction::Mean) {
    const RowOp& op = e != 0 ? smooth_row_cross_entropy_row : row_cross_entropy_row;
    const Tensor each = call(op, {logits, ids}, RowAttrs{1}, options.ignore_index, 1 - e, miss);
    return reduced(sole_view(reshape(each, ids.sizes())), options.reduction);
  }
  const Tensor count = sum((ids != options.ignore_index).to(compute_type(x.dtype)));
  return call(e != 0 ? smooth_cross_entropy_row : cross_entropy_row, {logits, ids, count},
              RowAttrs{1}, options.ignore_index, 1 - e, miss);
}

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  check_pair("mse_loss", a, b);
  BRRR_CHECK(is_floating(a.dtype()) || is_floating(b.dtype()),
             "mse_loss: takes floating dtypes, got {} and {}; convert one with to(kFloat32)",
             describe(a), describe(b));
  return reduced(square(operand(a, b) - operand(b, a)), reduction);
}

Tensor bce_with_logits(const Tensor& x, const Tensor& targets, Reduction reduction) {
  check_pair("bce_with_logits", x, targets);
  return reduced(call(bce_with_logits_row, operand(x, targets), operand(targets, x)), reduction);
}

}  // namespace brrr
