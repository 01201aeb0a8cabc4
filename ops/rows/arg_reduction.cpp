// argmax and argmin: the index of the first extremum along one dim. NaN counts as the extremum, as
// in PyTorch. The result does not depend on the order of comparison, so none is laid down.
#include <algorithm>
#include <bit>

#include "core/backend.h"
#include "core/check.h"
#include "ops/rows/library_kernels.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/reduction.h"
#include "ops/reduction_ops.h"

namespace brrr {

namespace {

constexpr int64_t kGrain = 1 << 15;  // Elements worth a thread.

// [outer, n, inner], dense in a compute type.
struct ArgProblem {
  const char* x;
  int64_t* out;
  int64_t n, inner;
  int64_t tiles() const { return (inner + 15) / 16; }
};

template <bool kMax, class V> vx::b16 better(V a, V b) {
  vx::b16 m = kMax ? vx::gt(a, b) : vx::lt(a, b);
  if constexpr (std::is_floating_point_v<Lane<V>>) m |= vx::ne(a, a) & vx::eq(b, b);
  return m;
}

template <bool kMax, class T> bool beats(T a, T b) {
  return (kMax ? a > b : a < b) || (a != a && b == b);
}

// Lane k sees elements k, k + 16, ...; the earliest of the lanes' best ones wins.
template <bool kMax, class V> int64_t arg_of_row(const Lane<V>* p, int64_t n) {
  using T = Lane<V>;
  int64_t at = 0, i = 0;
  T best = p[0];
  if (n >= 32) {
    V top = vx::load(p);
    vx::i64 step{}, vector_step{};  // Which load each lane's best came from.
    for (i = 16; i + 16 <= n; i += 16) {
      const V x = vx::load(p + i);
      vector_step += 1;
      const vx::b16 m = better<kMax, V>(x, top);
      top = vx::where(m, x, top);
      step = vx::where(m, vector_step, step);
    }
    best = top[0];
    at = step[0] * 16;
    for (int k = 1; k < 16; ++k) {
      const int64_t where = step[k] * 16 + k;
      const T x = top[k];
      if (beats<kMax, T>(x, best) || (!beats<kMax, T>(best, x) && where < at)) {
        best = x;
        at = where;
      }
    }
  }
  for (; i < n; ++i) {
    if (!beats<kMax, T>(p[i], best)) continue;
    best = p[i];
    at = i;
  }
  return at;
}

// 16 columns from `p`, `lanes` of them real; rows are `stride` apart.
template <bool kMax, class V>
void arg_of_columns(const Lane<V>* p, int64_t stride, int64_t n, int lanes, int64_t* out) {
  auto row = [&](int64_t i) {
    return lanes == 16 ? vx::load(p + i * stride) : vx::load_n(p + i * stride, lanes);
  };
  V top = row(0);
  vx::i64 at{}, index{};
  for (int64_t i = 1; i < n; ++i) {
    const V x = row(i);
    index += 1;
    const vx::b16 m = better<kMax, V>(x, top);
    top = vx::where(m, x, top);
    at = vx::where(m, index, at);
  }
  vx::store_n(reinterpret_cast<long*>(out), at, lanes);
}

// Units of work: an outer index and 16 of the inner ones.
template <bool kMax, class V> void arg_reduce(const ArgProblem& a, int64_t begin, int64_t end) {
  const auto* x = reinterpret_cast<const Lane<V>*>(a.x);
  const int64_t tiles = a.tiles();
  for (int64_t u = begin; u < end; ++u) {
    const int64_t o = u / tiles, c = u % tiles * 16;
    const Lane<V>* p = x + o * a.n * a.inner + c;
    int64_t* out = a.out + o * a.inner + c;
    const int lanes = static_cast<int>(std::min<int64_t>(16, a.inner - c));
    if (a.inner == 1)
      *out = arg_of_row<kMax, V>(p, a.n);
    else
      arg_of_columns<kMax, V>(p, a.inner, a.n, lanes, out);
  }
}

// ReductionAttrs with a mask of one bit.
void arg_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  const auto a = c.attrs.as<ReductionAttrs>();
  OutMeta& m = c.meta[0];
  for (int d = 0; d < x.ndim; ++d) {
    BRRR_CHECK(!(a.mask >> d & 1) || x.sizes[d] > 0,
               "{}: dim {} of {} has no elements; give a shape without 0", c.op->name, d,
               describe(&x));
  }
  m.alias = -1;
  m.dtype = kInt64;
  m.device = x.device;
  m.sizes = reduced_sizes(x.size_list(), a);
}

template <bool kMax> void arg_run(OpCall& c) {
  const TensorImpl* x = c.in[0];
  TensorImpl& y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DType compute = compute_type(x->dtype);
  Tensor dense;
  if (!x->contiguous() || x->dtype != compute) {
    dense = raw_empty(x->size_list(), compute, x->device);
    copy_now(*dense.impl(), *x);
    x = dense.impl();
  }
  const Lines l = lines_along(*x, reduced_dim(c.attrs));
  const ArgProblem a{x->data(), reinterpret_cast<int64_t*>(y.data()), l.n, l.inner};
  using Kernel = void (*)(const ArgProblem&, int64_t, int64_t);
  constexpr Kernel kernels[] = {arg_reduce<kMax, vx::f32>, arg_reduce<kMax, vx::f64>,
                                arg_reduce<kMax, vx::i64>, arg_reduce<kMax, vx::i32>};
  const Kernel kernel = kernels[compute_index(compute)];
  const int64_t work = a.n * std::min<int64_t>(a.inner, 16);
  parallel_for(l.outer * a.tiles(), std::max<int64_t>(1, kGrain / work),
               [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

const OpDef argmax_row{"argmax",
                       "Index of the first maximum along a dim; NaN wins",
                       {.infer = arg_infer, .kernel = {{arg_run<true>}, {argmax_cuda}}}};
const OpDef argmin_row{"argmin",
                       "Index of the first minimum along a dim; NaN wins",
                       {.infer = arg_infer, .kernel = {{arg_run<false>}, {argmin_cuda}}}};

}  // namespace

Tensor argmax(const Tensor& x, int64_t dim, bool keepdim) {
  return reduce(argmax_row, x, dim, keepdim);
}
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim) {
  return reduce(argmin_row, x, dim, keepdim);
}

}  // namespace brrr
