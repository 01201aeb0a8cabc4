#pragma once
// Shared by tests of reduction rows: shapes, dims, and the oracle with its error bounds.

#include "ops/kinds/reduction.h"
#include "tests/op_cases.h"

namespace brrr::test {

// Below, at and beyond one vector, four vectors, a block of rows and a chunk.
inline const std::vector<IntList> kShapes = {
    {},         {1},      {5},       {16},      {17},        {64},
    {67},       {5000},   {3, 4},    {7, 33},   {3, 4100},   {33, 7},
    {130, 600}, {700, 3}, {2, 3, 5}, {3, 1, 4}, {5, 70, 18}, {2, 3, 4, 5}};

inline std::vector<IntList> dims_of(int ndim) {
  std::vector<IntList> all = {IntList{}};  // No dims: all of them.
  for (int mask = 1; mask < 1 << ndim; ++mask) {
    IntList dims;
    for (int d = ndim - 1; d >= 0; --d) {
      if (mask >> d & 1) dims.push_back(mask % 3 ? d : d - ndim);  // Any order, also negative.
    }
    all.push_back(dims);
  }
  return all;
}

// The input elements of each output, in order: x with the kept dims first.
inline std::vector<std::vector<double>> groups(const Tensor& x, const IntList& dims) {
  const int64_t mask = reduction_mask("test", x, dims);
  IntList order, kept;
  for (int reduced = 0; reduced < 2; ++reduced) {
    for (int d = 0; d < x.dim(); ++d) {
      if ((mask >> d & 1) == reduced) order.push_back(d);
      if (!reduced && !(mask >> d & 1)) kept.push_back(x.size(d));
    }
  }
  const auto outputs = static_cast<size_t>(numel_of(kept));
  const auto all = (x.dim() ? x.permute(order) : x).to(kFloat64).to_vector<double>();
  std::vector<std::vector<double>> g(outputs);
  const size_t n = outputs ? all.size() / outputs : 0;
  for (size_t i = 0; i < outputs; ++i) {
    g[i].assign(all.begin() + static_cast<long>(i * n), all.begin() + static_cast<long>(i * n + n));
  }
  return g;
}

// Rounding errors of n operations on values of similar size add up to about sqrt(n) units;
// `magnitude` is the same reduction of the absolute values, where nothing cancels.
inline bool acceptable(double got, double want, double magnitude, size_t n, DType t) {
  if (std::isnan(want) || std::isinf(want)) {
    return std::isnan(want) ? std::isnan(got) : got == want;
  }
  const double eps = t == kFloat64 ? 0x1p-52 : 0x1p-23, tiny = t == kFloat64 ? 0 : 0x1p-140;
  const double units = 2 + 2 * std::sqrt(static_cast<double>(n));
  return std::fabs(got - want) <= units * eps * std::max(magnitude, std::fabs(want)) + tiny;
}

// Checks that y is the reduction of x, computed on the CPU.
inline void check_reduced(const Tensor& y, const OpDef& op, const Tensor& x, const IntList& dims,
                          bool keepdim) {
  CAPTURE(to_string(x.sizes()));
  CAPTURE(to_string(dims));
  const ReductionInfo& info = *op.reduction;
  REQUIRE(y.sizes() == reduced_sizes(x.sizes(), {reduction_mask("test", x, dims), keepdim}));
  const auto got = y.to(kFloat64).to_vector<double>();
  const auto rows = groups(x, dims);
  REQUIRE(got.size() == rows.size());
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<double> size = rows[i];
    for (double& v : size) v = std::fabs(v);
    const auto n = static_cast<int64_t>(size.size());
    const double want = info.oracle(rows[i].data(), n), magnitude = info.oracle(size.data(), n);
    const bool ok = is_floating(y.dtype())
                        ? acceptable(got[i], want, magnitude, size.size(), x.dtype())
                        : got[i] == want;
    if (!ok) CHECK_MESSAGE(ok, "output ", i, ": ", got[i], ", oracle ", want);
  }
}

inline void check_oracle(const OpDef& op, const Tensor& x, const IntList& dims, bool keepdim) {
  check_reduced(reduce(op, x, dims, keepdim), op, x, dims, keepdim);
}

inline Tensor values_for(const IntList& sizes, DType t, int salt = 0) {
  return sampled(sizes, t, -2.0, 2.0, salt);
}

inline bool has_kernel(const OpDef& op, DType t) {
  return error_of([&] { reduce(op, ones({2}, t), {}, false); }).empty();
}

// The same values, stored with the dims in reverse order, or with gaps and an offset.
inline Tensor reversed(const Tensor& t) {
  IntList order;
  for (int64_t d = t.dim() - 1; d >= 0; --d) order.push_back(d);
  return t.dim() ? t.permute(order).clone().permute(order) : t;
}
inline Tensor with_gaps(const Tensor& t) {
  if (t.dim() == 0) return t;
  IntList sizes = t.sizes();
  sizes[static_cast<int>(t.dim()) - 1] = 2 * sizes.back() + 3;
  return zeros(sizes, t.dtype()).slice(-1, 3, sizes.back(), 2).copy_(t);
}

}  // namespace brrr::test
