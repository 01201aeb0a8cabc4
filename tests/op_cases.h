#pragma once
// Shared by registry-driven tests: operands for any row, in any layout, and comparisons.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/autograd.h"
#include "core/op.h"
#include "graph/compare.h"
#include "graph/step.h"
#include "ops/factory_ops.h"
#include "ops/kinds/pointwise.h"
#include "ops/view_ops.h"
#include "tests/error_text.h"
#include "tests/sanitizer.h"

namespace brrr::test {

using Tensors = std::vector<Tensor>;

/// A pointwise row whose operands are int64 in every compute dtype.
inline bool takes_positions(const OpDef& op) { return op.pointwise && op.pointwise->integers; }
inline std::vector<const OpDef*> rows_of(OpKind kind) {
  std::vector<const OpDef*> rows;
  for (const OpDef* op : registry()) {
    // Rows that use the element's position, and draws, have separate cases: see takes_positions().
    if (op->kind == kind && !takes_positions(*op)) rows.push_back(op);
  }
  REQUIRE(!rows.empty());
  return rows;
}

// --- comparisons ---------------------------------------------------------------------------------

/// Empty if the tensors agree in dtype, shape and every bit (any NaN equals any other), else the
/// first difference.
inline std::string difference(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return "one is undefined";
  if (!a.defined()) return "";
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) {
    return describe(a.impl()) + " against " + describe(b.impl());
  }
  const auto p = comparable_bytes(a), q = comparable_bytes(b);
  const auto at = std::mismatch(p.begin(), p.end(), q.begin()).first;
  if (at == p.end()) return "";
  const auto i = static_cast<size_t>(at - p.begin()) / itemsize(a.dtype());
  const auto value = [i](const Tensor& t) { return t.detach().to_vector<double>()[i]; };
  return fmt::format("element {} of {}: {} against {}", i, describe(a.impl()), value(a), value(b));
}
inline void check_same(const Tensor& a, const Tensor& b) {
  const std::string d = difference(a, b);
  CHECK_MESSAGE(d.empty(), d);
}
inline void check_same(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) check_same(a[i], b[i]);
}

/// |a - b| <= tolerance * (1 + |b|) everywhere.
inline void check_close(const Tensor& a, const Tensor& b, double tolerance) {
  REQUIRE(a.sizes() == b.sizes());
  const auto u = a.detach().to(kFloat64).to_vector<double>();
  const auto v = b.detach().to(kFloat64).to_vector<double>();
  for (size_t i = 0; i < u.size(); ++i) {
    const bool close = u[i] == v[i] || (std::isnan(u[i]) && std::isnan(v[i])) ||
                       std::fabs(u[i] - v[i]) <= tolerance * (1 + std::fabs(v[i]));
    if (!close) CHECK_MESSAGE(close, fmt::format("element {}: {} against {}", i, u[i], v[i]));
  }
}

// --- operands ------------------------------------------------------------------------------------

/// Distinct values in [lo, hi] away from multiples of 0.5, where functions have kinks and steps;
/// integers (from a wider range) for integer dtypes, both values for bool.
inline Tensor sampled(const IntList& sizes, DType dtype, double lo = -2, double hi = 2,
                      int salt = 0) {
  std::vector<double> v(static_cast<size_t>(numel_of(sizes)));
  const bool whole = !is_floating(dtype);
  if (whole) {
    lo = dtype == kUInt8 || lo >= 0 ? 1 : -7;
    hi = 9;
  }
  for (size_t i = 0; i < v.size(); ++i) {
    const double at = 0.3 + 0.41421356237 * salt + 0.6180339887498949 * static_cast<double>(i);
    double x = lo + (hi - lo) * (at - std::floor(at));
    const double kink = std::nearbyint(x * 2) / 2;
    if (!whole && std::fabs(x - kink) < 2e-3) x = kink + (kink < (lo + hi) / 2 ? 3e-3 : -3e-3);
    v[i] = dtype == kBool ? static_cast<double>((i * 5 + i / 3 + salt) % 3 == 0)
           : whole        ? std::floor(x)
                          : x;
  }
  return from_blob(static_cast<const void*>(v.data()), sizes, kFloat64).to(dtype);
}

/// Whether a pointwise row rejects operands of the dtype.
inline bool refuses(const OpDef& op, DType dtype) {
  return dtype == kBool && op.pointwise->traits.no_bool;
}
/// An operand of a pointwise row, sampled in the range of its traits; conditions are bool, and
/// uint8 replaces bool where a row rejects it.
inline Tensor operand_of(const OpDef& op, int i, const IntList& sizes, DType dtype, int salt = 0) {
  const PointwiseTraits& t = op.pointwise->traits;
  if (refuses(op, dtype)) dtype = kUInt8;
  return sampled(sizes, t.condition >> i & 1 ? kBool : dtype, t.lo, t.hi, i + salt);
}
inline Tensors operands_of(const OpDef& op, const IntList& sizes, DType dtype, int salt = 0) {
  Tensors in;
  for (int i = 0; i < op.pointwise->n_in; ++i) in.push_back(operand_of(op, i, sizes, dtype, salt));
  return in;
}

inline Tensors run_row(const OpDef& op, const Tensors& in) {
  PointwiseCall call(op);
  for (const Tensor& t : in) call.add(t);
  return call.run_all();
}
/// Like run_row(), with the results written into `out`.
inline void run_row_into(const OpDef& op, const Tensors& in, const Tensors& out) {
  PointwiseCall call(op);
  for (const Tensor& t : in) call.add(t);
  switch (out.size()) {
    case 1:
      return call.run_into({out[0]});
    case 2:
      return call.run_into({out[0], out[1]});
    case 3:
      return call.run_into({out[0], out[1], out[2]});
    default:
      return call.run_into({out[0], out[1], out[2], out[3]});
  }
}

// --- layouts -------------------------------------------------------------------------------------

enum class Layout { Dense, Transposed, Sliced, Broadcast, Offset };
inline constexpr Layout kLayouts[] = {Layout::Dense, Layout::Transposed, Layout::Sliced,
                                      Layout::Broadcast, Layout::Offset};

/// A matrix in another layout with t's values (Broadcast: with its first row in every row).
inline Tensor laid_out(const Tensor& t, Layout layout) {
  const int64_t rows = t.size(0), cols = t.size(1);
  switch (layout) {
    case Layout::Dense:
      return t.clone();
    case Layout::Transposed:
      return t.t().clone().t();
    case Layout::Sliced: {
      const Tensor room = zeros({rows, 2 * cols}, t.dtype());
      return room.slice(1, 0, 2 * cols, 2).copy_(t);
    }
    case Layout::Broadcast:
      return t.narrow(0, 0, 1).clone().expand({rows, cols});
    case Layout::Offset: {
      const Tensor room = zeros({rows * cols + 3}, t.dtype());
      return room.narrow(0, 3, rows * cols).view({rows, cols}).copy_(t);
    }
  }
  return {};
}

// --- graph against eager -------------------------------------------------------------------------

/// Results of a function under test, each with a name for the report.
struct Results {
  Tensors values;
  std::vector<std::string> names;
  void add(std::string name, const Tensor& t) {
    values.push_back(t);
    names.push_back(std::move(name));
  }
};

/// Runs `body` eagerly, as a compiled step (twice), and on the reference walker, and compares all
/// results bit by bit.
inline void check_step(const std::function<void(Results&)>& body) {
  manual_seed(11);
  Results want;
  body(want);
  std::vector<std::string> names;
  const auto run = [&] {
    Results r;
    body(r);
    names = r.names;
    return r.values;
  };
  const auto compare = [&](auto& step, const std::string& call) {
    manual_seed(11);
    const Tensors got = step();
    REQUIRE(names == want.names);
    for (size_t i = 0; i < got.size(); ++i) {
      const std::string d = difference(got[i], want.values[i]);
      CHECK_MESSAGE(d.empty(), want.names[i], ", call ", call, ": ", d);
    }
  };
  auto step = brrr::step(run, StepOptions{.require_graph = true, .build_at_first_call = true});
  compare(step, "0");
  compare(step, "1");
  CHECK(step.stats().fallbacks == 0);
  CHECK(step.stats().replays == 2);
  auto walked = brrr::step(run, StepOptions{});  // Builds at the second call only.
  compare(walked, "of the walker");
  CHECK(walked.stats().replays == 0);
}

/// Adds y, and the gradients of `wanted` through it, to the results.
inline void add_with_gradients(Results& r, const std::string& name, const Tensor& y,
                               const Tensors& wanted) {
  r.add(name, y);
  if (!y.requires_grad()) return;
  Tensors at;
  for (const Tensor& t : wanted) {
    if (t.requires_grad()) at.push_back(t);
  }
  const Tensor weights = sampled(y.sizes(), kFloat32, 0.3, 1.7, 5).to(y.dtype());
  const Tensors g = grad({y}, at, {.allow_unused = true}, {weights});
  for (size_t i = 0; i < g.size(); ++i) {
    if (g[i].defined()) r.add(fmt::format("{}, gradient {}", name, i), g[i]);
  }
}

/// A leaf that requires grad, with t's elements in t's layout.
inline Tensor leaf(const Tensor& t) {
  return is_floating(t.dtype()) ? t.detach().set_requires_grad(true) : t;
}

}  // namespace brrr::test
