// Running sums along one dim.
//
// THE ORDER: each line along the dim is summed one element after the other, from its first (for the
// gradient: from its last). 16-bit floats are summed in float32 and rounded element by element. A
// GPU has an order of its own (cumsum_cuda.cpp).
#include <algorithm>
#include <type_traits>

#include "core/backend.h"
#include "core/call.h"
#include "core/check.h"
#include "ops/rows/library_kernels.h"
#include "ops/library_ops.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

namespace {

constexpr int64_t kRows = 4;      // Lines at a time, so that their additions do not wait for each
constexpr int64_t kColumns = 64;  // other: neighbouring ones, or each dense itself.

// [outer, n, inner], dense.
template <class T> struct Scan {
  const T* x;
  T* y;
  int64_t outer, n, inner;
  bool reverse;

  // Integers wrap.
  static T add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }

  // Dense lines from offset `at`.
  template <int64_t kCount> void rows(int64_t at) const {
    const int64_t step = reverse ? -1 : 1;
    if (reverse) at += n - 1;
    T total[kCount];
    for (int64_t k = 0; k < kCount; ++k) y[at + k * n] = total[k] = x[at + k * n];
    for (int64_t i = 1; i < n; ++i) {
      at += step;
      for (int64_t k = 0; k < kCount; ++k) {
        y[at + k * n] = total[k] = add(total[k], x[at + k * n]);
      }
    }
  }

  // `count` neighbouring lines from offset `at`.
  void columns(int64_t at, int64_t count) const {
    const int64_t step = reverse ? -inner : inner;
    if (reverse) at += (n - 1) * inner;
    for (int64_t k = 0; k < count; ++k) y[at + k] = x[at + k];
    for (int64_t i = 1; i < n; ++i) {
      const T *before = y + at, *from = x + at + step;
      T* to = y + at + step;
      for (int64_t k = 0; k < count; ++k) to[k] = add(before[k], from[k]);
      at += step;
    }
  }

  int64_t units() const { return inner == 1 ? (outer + kRows - 1) / kRows : outer * tiles(); }
  int64_t tiles() const { return (inner + kColumns - 1) / kColumns; }
  void run(int64_t begin, int64_t end) const {
    for (int64_t u = begin; u < end; ++u) {
      if (inner > 1) {
        const int64_t column = u % tiles() * kColumns;
        columns(u / tiles() * n * inner + column, std::min(kColumns, inner - column));
      } else if (u * kRows + kRows <= outer) {
        rows<kRows>(u * kRows * n);
      } else {
        for (int64_t r = u * kRows; r < outer; ++r) rows<1>(r * n);
      }
    }
  }
};

DType sum_dtype(DType t) {
  return is_floating(t) ? t : kInt64;
}

void cumsum_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  c.meta[0].dtype = sum_dtype(x.dtype);
  c.meta[0].device = x.device;
  c.meta[0].sizes = x.size_list();
}

template <class T> void scan(OpCall& c, DType compute) {
  const TensorImpl& x = *c.in[0];
  const DenseInput in(&x, compute);
  DenseOutput out(c.out[0], compute);
  const auto a = c.attrs.as<CumsumAttrs>();
  const Lines l = lines_along(x, static_cast<int>(a.dim));
  const Scan<T> s{in.as<T>(), out.as<T>(), l.outer, l.n, l.inner, a.reverse != 0};
  parallel_for(s.units(), std::max<int64_t>(1, kRowGrain * s.units() / x.numel),
               [&](int64_t begin, int64_t end) { s.run(begin, end); });
  out.finish();
}

void cumsum_cpu(OpCall& c) {
  if (c.in[0]->numel == 0) return;
  const DType t = sum_dtype(c.in[0]->dtype), compute = compute_type(t);
  if (t == kInt64) return scan<int64_t>(c, compute);
  if (compute == kFloat64) return scan<double>(c, compute);
  scan<float>(c, compute);
}

void cumsum_vjp(VjpCall& v);

const OpDef cumsum_row{
    "cumsum",
    "running sums along a dim; integers and bool give int64",
    {.infer = cumsum_infer, .kernel = {{cumsum_cpu}, {cumsum_cuda}}, .vjp = cumsum_vjp}};

void cumsum_vjp(VjpCall& v) {
  const auto a = v.attrs().as<CumsumAttrs>();
  v.gin[0] = call(cumsum_row, {v.gout[0]}, CumsumAttrs{a.dim, !a.reverse});
}

}  // namespace

Tensor cumsum(const Tensor& x, int64_t dim) {
  BRRR_CHECK(x.defined(), "cumsum: the tensor is undefined; assign one first");
  return call(cumsum_row, {x},
              CumsumAttrs{wrap_dim("cumsum", dim, static_cast<int>(x.dim())), false});
}
Tensor Tensor::cumsum(int64_t dim) const {
  return brrr::cumsum(*this, dim);
}

}  // namespace brrr
