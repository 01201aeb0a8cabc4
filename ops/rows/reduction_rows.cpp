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
// (Of nothing it has no elements, but its own gradient has.)
Tensor shared_by_all(const ReductionGrad& r) { return r.g / std::max(r.count, 1.0); }
const ReductionOp mean_row{"mean", "Arithmetic mean", kFloats,      kPlain, kZero, Keep{},
                           kAdd,   kQuotient,         shared_by_all};

const ReductionOp norm_row{
    "norm", "Euclidean norm, sqrt(sum(x * x)); its gradient is 0 at 0", kFloats, kRoot, kZero,
    [](auto x) { return x * x; }, kAdd, [](auto a, auto) { return m::sqrt(a); },
    // Where the norm is 0 so is every x, and 0 / 1 is the gradient wanted.
    [](const ReductionGrad& r) { return r.g * (r.x / where(r.y == 0.0, 1.0, r.y)); }};

// Elements that equal the extremum share its gradient evenly. 16-bit floats would not count them.
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

// Per row of x [rows, n], the product of all elements but the own one; without division, so that
// zeros need no care and the second derivative is right too. Products of pairs go up a binary tree
// and down again: what a node's leaves lack is what its parent's lack times its sibling. In float32
// for 16-bit floats, which a product of few would leave.
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

// --- one number a row ----------------------------------------------------------------------------

// Two passes: the squares of deviations from the mean lose nothing to a large mean.
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

// What is taken off before exp: the maximum, or near it where that is infinite (inf - inf is NaN),
// so that exp of what is finite is.
constexpr auto kCentre = [](auto top) {
  return m::where(m::isfinite(top), top, m::max(m::min(top, 3e38), 0.0));
};

// log(sum(exp(x - c))) + c, where c is no function of x to the gradient: any c gives the same. The
// logarithm does not see the 0 of a row that is -inf throughout, whose gradient is 0.
const RowOp logsumexp_row{"logsumexp", "log(sum(exp(x - max))) + max",
                          [](auto x) {
                            const auto c = kCentre(m::constant(row::max(x)));
                            const auto s = row::sum(m::exp(x - c));
                            const auto y = m::where(s == 0.0, -kInfinity,
                                                    m::log(m::where(s == 0.0, 1.0, s)) + c);
                            return std::tuple{y, c, s};
                          },
                          [](auto x, auto, auto c, auto s, auto g) {
                            const auto share = g / m::where(s == 0.0, 1.0, s);
                            return m::where(s == 0.0, 0.0, share) * m::exp(x - m::constant(c));
                          }};

// The rows' numbers, if the dims in the mask are the last ones; else undefined. A row is one
// thread's: a large tensor as a whole is left to the threads, with the same bits.
template <class... Numbers>
Tensor over_last(const RowOp& op, const Tensor& x, const ReductionAttrs& a, Numbers... numbers) {
  const int64_t beyond = int64_t{1} << x.dim(), lowest = a.mask & -a.mask;
  if (a.mask + lowest != beyond || (lowest == 1 && x.numel() > 1 << 17)) return {};
  const Tensor y =
      call(op, {x}, RowAttrs{std::popcount(static_cast<uint64_t>(a.mask))}, numbers...);
  return sole_view(reshape(y, reduced_sizes(x.sizes(), a)));
}

// What a composite computes in: 16-bit floats would be rounded between its ops.
Tensor in_compute_type(const char* op, const Tensor& x) {
  check_floating(op, *x.impl());
  return widened(x);
}
// And what it gives: under autocast that, as a row does.
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

// Dims that are not the last ones have the order of their reductions.
Tensor var(const Tensor& x, const IntList& dims, bool unbiased, bool keepdim) {
  const int64_t mask = reduction_mask("var", x, dims), n = reduced_count(x.sizes(), mask);
  const auto freedom = static_cast<double>(std::max<int64_t>(0, n - unbiased));  // Of 0: NaN.
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
  const Tensor c = kCentre(amax(wide.detach(), dims, true));
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
