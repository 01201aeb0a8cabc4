#pragma once
// Shared by tests of composite rows: a row's kernel against its decomposition, values, gradients.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/autograd.h"
#include "core/op.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"
#include "tests/error_text.h"

namespace brrr::nn_test {

using test::error_of, test::kInf;
using Tensors = std::vector<Tensor>;
using Doubles = std::vector<double>;

struct AttrValues {
  std::vector<int64_t> integers;
  std::vector<double> floats;
};

// Attributes of a cross_entropy row: the dims of a row, the ignored id, hit and miss weights.
inline AttrValues loss_attrs(int64_t classes, int64_t ignored = -100, double smoothing = 0) {
  return {{1, ignored}, {1 - smoothing, smoothing / static_cast<double>(classes)}};
}
inline std::string loss_row(double smoothing) {
  return smoothing != 0 ? "smooth_cross_entropy" : "cross_entropy";
}

// All outputs of the named row, from its kernel and from its decomposition.
struct Both {
  Tensors kernel, decomposed;
};
inline Both run_both(const char* name, const Tensors& in, const AttrValues& values = {}) {
  const OpDef* op = find_op(name);
  REQUIRE(op);
  std::vector<TensorImpl*> impls;
  for (const Tensor& t : in) impls.push_back(t.impl());
  Both r;
  for (const bool decompose : {false, true}) {
    OpCall c(*op, impls.data(), static_cast<int>(impls.size()));
    for (int64_t w : values.integers) c.attrs.push(w);
    for (double w : values.floats) c.attrs.push(w);
    if (decompose)
      op->decompose(c, in.data());
    else
      dispatch(c);
    (decompose ? r.decomposed : r.kernel).assign(c.out, c.out + c.n_out - op->n_scratch);
  }
  return r;
}

inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

inline void check_same(const Both& r) {
  for (size_t k = 0; k < r.kernel.size(); ++k) {
    const Tensor &a = r.kernel[k], &b = r.decomposed[k];
    CAPTURE(k);
    REQUIRE(a.sizes() == b.sizes());
    REQUIRE(a.dtype() == b.dtype());
    const auto x = a.to(kFloat64).to_vector<double>(), y = b.to(kFloat64).to_vector<double>();
    for (size_t i = 0; i < x.size(); ++i) {
      CAPTURE(i);
      if (!same(x[i], y[i])) REQUIRE(x[i] == y[i]);
    }
  }
}

inline Tensor normal(const IntList& sizes, DType t = kFloat64) { return randn(sizes).to(t); }

inline Tensor classes_for(int64_t n, int64_t classes) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(i * 7 + 3) % classes;
  }
  return tensor(ids);
}

inline void check_values(const Tensor& t, const Doubles& want, double tolerance) {
  const auto got = t.to(kFloat64).to_vector<double>();
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(want[i]) || std::isinf(want[i]))
      CHECK(same(got[i], want[i]));
    else
      CHECK(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i])));
  }
}

inline void check_gradients(const std::function<Tensor(const Tensors&)>& fn, const Tensors& in) {
  const auto r = gradcheck(fn, in, {.tolerance = 2e-6, .second_order = true});
  CHECK_MESSAGE(r.ok, r.report);
}

inline const DType kFloatTypes[] = {kFloat32, kFloat64, kBFloat16, kFloat16};
// Below, at and beyond one vector, four vectors, and a reduction chunk.
inline const int64_t kSizes[] = {1, 2, 10, 16, 17, 64, 65, 127, 1000, 4096, 4097, 9000};

}  // namespace brrr::nn_test
