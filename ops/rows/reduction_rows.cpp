// The reduction rows, and reductions composed of them.
#include "ops/reduction_ops.h"

#include "core/autocast.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr ReductionTraits kPlain{}, kBoolean{.result = ReductionResult::Bool};
constexpr ReductionTraits kWide{.result = ReductionResult::Wide};
constexpr ReductionTraits kProduct{.result = ReductionResult::Wide, .saves_input = true};
constexpr ReductionTraits kRoot{.saves_input = true, .saves_output = true};
constexpr ReductionTraits kExtremum{
    .needs_elements = true, .saves_input = true, .saves_output = true};
constexpr auto kZero = [] { return 0.0; };
constexpr auto kOne = [] { return 1.0; };
constexpr auto kLowest = [] { return -kInfinity; };
constexpr auto kHighest = [] { return kInfinity; };
constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kLarger = [](auto a, auto b) { return m::max(a, b); };
constexpr auto kSmaller = [](auto a, auto b) { return m::min(a, b); };
struct Truth {
  using Idempotent = void;
  template <class T> auto operator()(T x) const { return m::where(x != 0.0, 1.0, 0.0); }
};

const ReductionOp total_row{
    "sum",  "Sum; integers and bool give int64",       kFloatsAndInt64, kWide, kZero, Keep{}, kAdd,
    Keep{}, [](const ReductionGrad& r) { return r.g; }};

constexpr auto kQuotient = [](auto a, auto n) { return a / n; };
// A count of 0 is taken as 1: this gradient has no elements then, but its own gradient does.
Tensor mean_gradient(const ReductionGrad& r) { return r.g / std::max(r.count, 1.0); }
const ReductionOp mean_row{"mean", "Arithmetic mean", kFloats,      kPlain, kZero, Keep{},
                           kAdd,   kQuotient,         mean_gradient};

const ReductionOp norm_row{
    "norm", "Euclidean norm, sqrt(sum(x * x)); its gradient is 0 at 0", kFloats, kRoot, kZero,
    [](auto x) { return x * x; }, kAdd, [](auto a, auto) { return m::sqrt(a); },
    // Where the norm is 0 so is every x; dividing by 1 gives the gradient 0.
    [](const ReductionGrad& r) { return r.g * (r.x / where(r.y == 0.0, 1.0, r.y)); }};

// Ties share the gradient evenly. The compute type counts them: 16-bit floats cannot count far.
Tensor shared_by_ties(const ReductionGrad& r) {
  const Tensor ties = (r.x == r.y).to(compute_type(r.g.dtype()));
  return (ties * (r.g / sum(ties, r.dims, true))).to(r.g.dtype());
}

const ReductionOp amax_row{"amax",        "Maximum; NaN wins; ties share the gradient",
                           kNumbers,      kExtremum,
                           kLowest,       Keep{},
                           kLarger,       Keep{},
                           shared_by_ties};
const ReductionOp amin_row{"amin",        "Minimum; NaN wins; ties share the gradient",
                           kNumbers,      kExtremum,
                           kHighest,      Keep{},
                           kSmaller,      Keep{},
                           shared_by_ties};
const ReductionOp any_row{
    "any", "Whether an element is not 0", kNumbers, kBoolean, kZero, Truth{}, kLarger, Keep{}};
const ReductionOp all_row{
    "all", "Whether no element is 0", kNumbers, kBoolean, kOne, Truth{}, kSmaller, Keep{}};

// For each element of a row of x [rows, n], the product of the others; without division, so that
// zeros need no special case and the second derivative is right too. Pair products go up a binary
// tree and down again: the product outside a node is that outside its parent times its sibling.
// 16-bit floats are widened to float32: a product of a few would overflow or underflow.
Tensor products_of_others(const Tensor& in) {
  const Tensor x = widened(in);
  const int64_t rows = x.size(0), n = x.size(1);
  auto ones_of = [&](int64_t width) { return ones({rows, width}, x.dtype(), x.device()); };
  int64_t leaves = 1;
  while (leaves < n) leaves *= 2;
  Tensor level = leaves == n ? x : cat({x, ones_of(leaves - n)}, 1);
  std::vector<Tensor> left, right;
  for (int64_t pairs = leaves / 2; pairs > 0; pairs /= 2) {
    const Tensor both = reshape(level, {rows, pairs, 2});
    left.push_back(both.select(2, 0));
    right.push_back(both.select(2, 1));
    level = left.back() * right.back();
  }
  Tensor others = ones_of(1);
  for (int64_t nodes = 2; nodes <= leaves; nodes *= 2) {
    others = reshape(stack({others * right.back(), others * left.back()}, 2), {rows, nodes});
    left.pop_back();
    right.pop_back();
  }
  return others.slice(1, 0, n);
}

Tensor prod_gradient(const ReductionGrad& r) {
  if (r.dims.empty()) return r.g;
  if (r.x.numel() == 0) return r.g * r.x;
  IntList order, inverse = r.sizes;
  for (int d = 0; d < r.sizes.size(); ++d) {
    if (std::ranges::count(r.dims, d) == 0) order.push_back(d);
  }
  for (int64_t d : r.dims) order.push_back(d);
  for (int i = 0; i < order.size(); ++i) inverse[static_cast<int>(order[i])] = i;
  const auto n = static_cast<int64_t>(r.count);
  const Tensor last = permute(r.x, order), rows = reshape(last, {r.x.numel() / n, n});
  const Tensor others = permute(reshape(products_of_others(rows), last.sizes()), inverse);
  return (r.g * others).to(r.g.dtype());
}

const ReductionOp prod_row{
    "prod", "Product; integers and bool give int64", kFloatsAndInt64, kProduct,     kOne,
    Keep{}, [](auto a, auto b) { return a * b; },    Keep{},          prod_gradient};

// --- one scalar per row --------------------------------------------------------------------------

// Two passes: squared deviations from the mean lose no precision to a large mean.
const RowOp var_row{"var",
                    "sum((x - mean)^2) / degrees of freedom",
                    Operands<Operand::Each, Operand::Scalar>{},
                    {"x"},
                    [](auto x, auto freedom) {
                      const auto mean = row::mean(x);
                      const auto d = x - mean;
                      return std::tuple{row::sum(d * d) / freedom, mean};
                    },
                    [](auto x, auto freedom, auto, auto mean, auto g) {
                      const auto part = g / freedom * (x - mean);
                      const auto both = part + part;
                      return both + row::mean(-both);
                    }};

// The shift subtracted before exp: the maximum, or 3e38 for inf and 0 for -inf (inf - inf is NaN),
// so that exp of a finite element is finite.
constexpr auto kShift = [](auto top) {
  return m::where(m::isfinite(top), top, m::max(m::min(top, 3e38), 0.0));
};

// log(sum(exp(x - c))) + c, where c is constant to the gradient: the result does not depend on it.
// A row of -inf only has s = 0: its result is -inf, its gradient 0, and log and division see a 1.
const RowOp logsumexp_row{"logsumexp", "log(sum(exp(x - max))) + max",
                          [](auto x) {
                            const auto c = kShift(m::constant(row::max(x)));
                            const auto s = row::sum(m::exp(x - c));
                            const auto y = m::where(s == 0.0, -kInfinity,
                                                    m::log(m::where(s == 0.0, 1.0, s)) + c);
                            return std::tuple{y, c, s};
                          },
                          [](auto x, auto, auto c, auto s, auto g) {
                            const auto share = g / m::where(s == 0.0, 1.0, s);
                            return m::where(s == 0.0, 0.0, share) * m::exp(x - m::constant(c));
                          }};

// Reduces by a row op if the dims in the mask are the last ones; else returns an undefined tensor,
// also for a large tensor as a whole: a row runs on one thread, reductions on all, with equal bits.
template <class... Scalars>
Tensor over_last(const RowOp& op, const Tensor& x, const ReductionAttrs& a, Scalars... scalars) {
  const int64_t beyond = int64_t{1} << x.dim(), lowest = a.mask & -a.mask;
  if (a.mask + lowest != beyond || (lowest == 1 && x.numel() > 1 << 17)) return {};
  const Tensor y =
      call(op, {x}, RowAttrs{std::popcount(static_cast<uint64_t>(a.mask))}, scalars...);
  return sole_view(reshape(y, reduced_sizes(x.sizes(), a)));
}

// Widens 16-bit floats, which would otherwise be rounded between the ops of a composite.
Tensor in_compute_type(const char* op, const Tensor& x) {
  check_floating(op, *x.impl());
  return widened(x);
}
// Rounds a composite's result to the dtype of x; under autocast it stays wide, as a row op's does.
Tensor rounded(const Tensor& y, const Tensor& x) {
  return autocast_dtype() == kFloat32 ? y.to(x.dtype()) : y;
}

}  // namespace

Tensor sum(const Tensor& x, const IntList& d, bool keep) { return reduce(total_row, x, d, keep); }
Tensor mean(const Tensor& x, const IntList& d, bool keep) { return reduce(mean_row, x, d, keep); }
Tensor prod(const Tensor& x, const IntList& d, bool keep) { return reduce(prod_row, x, d, keep); }
Tensor amax(const Tensor& x, const IntList& d, bool keep) { return reduce(amax_row, x, d, keep); }
Tensor amin(const Tensor& x, const IntList& d, bool keep) { return reduce(amin_row, x, d, keep); }
Tensor norm(const Tensor& x, const IntList& d, bool keep) { return reduce(norm_row, x, d, keep); }
Tensor any(const Tensor& x, const IntList& d, bool keep) { return reduce(any_row, x, d, keep); }
Tensor all(const Tensor& x, const IntList& d, bool keep) { return reduce(all_row, x, d, keep); }

// Dims that are not the last ones are reduced in the order of the reductions that this calls.
Tensor var(const Tensor& x, const IntList& dims, bool unbiased, bool keepdim) {
  const int64_t mask = reduction_mask("var", x, dims), n = reduced_count(x.sizes(), mask);
  const auto freedom = static_cast<double>(std::max<int64_t>(0, n - unbiased));  // 0 gives NaN.
  if (const Tensor y = over_last(var_row, x, {mask, keepdim}, freedom); y.defined()) return y;
  const Tensor wide = in_compute_type("var", x);
  const Tensor deviation = wide - mean(wide, dims, true);
  return rounded(sum(deviation * deviation, dims, keepdim) / freedom, x);
}

Tensor logsumexp(const Tensor& x, const IntList& dims, bool keepdim) {
  const int64_t mask = reduction_mask("logsumexp", x, dims);
  if (const Tensor y = over_last(logsumexp_row, x, {mask, keepdim}); y.defined()) return y;
  const Tensor wide = in_compute_type("logsumexp", x);
  if (reduced_count(x.sizes(), mask) == 0) return rounded(sum(wide, dims, keepdim) - kInfinity, x);
  const Tensor c = kShift(amax(wide.detach(), dims, true));
  const Tensor s = sum(exp(wide - c), dims, true);
  const Tensor empty = s == 0.0;
  const Tensor y = where(empty, -kInfinity, log(where(empty, 1.0, s)) + c);
  return sole_view(rounded(reshape(y, reduced_sizes(x.sizes(), {mask, keepdim})), x));
}

std::pair<Tensor, Tensor> max_with_indices(const Tensor& x, int64_t dim, bool keepdim) {
  const Tensor index = argmax(x, dim, true);
  if (x.impl()->ndim == 0) return {amax(x), index};
  const Tensor values = gather(x, dim, index);
  if (keepdim) return {values, index};
  return {sole_view(squeeze(values, dim)), sole_view(squeeze(index, dim))};
}

// --- members ------------------------------------------------------------------------------------

Tensor Tensor::sum(const IntList& d, bool keep) const { return brrr::sum(*this, d, keep); }
Tensor Tensor::mean(const IntList& d, bool keep) const { return brrr::mean(*this, d, keep); }
Tensor Tensor::prod(const IntList& d, bool keep) const { return brrr::prod(*this, d, keep); }
Tensor Tensor::max(const IntList& d, bool keep) const { return brrr::amax(*this, d, keep); }
Tensor Tensor::min(const IntList& d, bool keep) const { return brrr::amin(*this, d, keep); }
Tensor Tensor::norm(const IntList& d, bool keep) const { return brrr::norm(*this, d, keep); }
Tensor Tensor::any(const IntList& d, bool keep) const { return brrr::any(*this, d, keep); }
Tensor Tensor::all(const IntList& d, bool keep) const { return brrr::all(*this, d, keep); }
Tensor Tensor::var(const IntList& d, bool unbiased, bool keep) const {
  return brrr::var(*this, d, unbiased, keep);
}
Tensor Tensor::logsumexp(const IntList& d, bool keep) const {
  return brrr::logsumexp(*this, d, keep);
}
Tensor Tensor::argmax(int64_t d, bool keep) const { return brrr::argmax(*this, d, keep); }
std::pair<Tensor, Tensor> Tensor::max_with_indices(int64_t d, bool keep) const {
  return brrr::max_with_indices(*this, d, keep);
}
Tensor Tensor::argmin(int64_t d, bool keep) const { return brrr::argmin(*this, d, keep); }

}  // namespace brrr
