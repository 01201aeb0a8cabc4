// Softmax and its logarithm over the last dim; other dims are moved there and back.
#include "core/check.h"
#include "ops/rows/nn_kernels.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/kinds/row_kernel.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// --- kernels: `rows` rows of n elements ----------------------------------------------------------

template <class V> void softmax_rows(const Lane<V>* x, Lane<V>* y, int64_t rows, int64_t n) {
  Lane<V> max[kRowBlock], sum[kRowBlock];
  for (int64_t r = 0; r < rows; ++r) max[r] = max_row<V>(x + r * n, n);
  for (int64_t r = 0; r < rows; ++r) {
    const V m = vx::splat(max[r]);
    sum[r] = sum_row<V>(n, [=, from = x + r * n, to = y + r * n](int64_t i, int lanes) {
      const V e = vx::exp(take<V>(from + i, lanes) - m);
      put<V>(to + i, e, lanes);
      return e;
    });
  }
  for (int64_t r = 0; r < rows; ++r, y += n) {
    const V scale = spread<V>(1) / vx::splat(sum[r]);
    map_row(n, [=](int64_t i, int lanes) { put<V>(y + i, take<V>(y + i, lanes) * scale, lanes); });
  }
}

template <class V> void log_softmax_rows(const Lane<V>* x, Lane<V>* y, int64_t rows, int64_t n) {
  Lane<V> max[kRowBlock], sum[kRowBlock];
  for (int64_t r = 0; r < rows; ++r) max[r] = max_row<V>(x + r * n, n);
  for (int64_t r = 0; r < rows; ++r) sum[r] = exp_sum_row<V>(x + r * n, max[r], n);
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const V m = vx::splat(max[r]), log_sum = vx::log(vx::splat(sum[r]));
    map_row(n, [=](int64_t i, int lanes) {
      put<V>(y + i, take<V>(x + i, lanes) - m - log_sum, lanes);
    });
  }
}

template <class V>
void softmax_backward_rows(const Lane<V>* y, const Lane<V>* g, Lane<V>* dx, int64_t rows,
                           int64_t n) {
  Lane<V> dots[kRowBlock];
  for (int64_t r = 0; r < rows; ++r) {
    dots[r] = sum_row<V>(n, [a = g + r * n, b = y + r * n](int64_t i, int lanes) {
      return take<V>(a + i, lanes) * take<V>(b + i, lanes);
    });
  }
  for (int64_t r = 0; r < rows; ++r, y += n, g += n, dx += n) {
    const V dot = vx::splat(dots[r]);
    map_row(n, [=](int64_t i, int lanes) {
      put<V>(dx + i, take<V>(y + i, lanes) * (take<V>(g + i, lanes) - dot), lanes);
    });
  }
}

template <class V>
void log_softmax_backward_rows(const Lane<V>* y, const Lane<V>* g, Lane<V>* dx, int64_t rows,
                               int64_t n) {
  for (int64_t r = 0; r < rows; ++r, y += n, g += n, dx += n) {
    const V total =
        vx::splat(sum_row<V>(n, [=](int64_t i, int lanes) { return take<V>(g + i, lanes); }));
    map_row(n, [=](int64_t i, int lanes) {
      put<V>(dx + i, take<V>(g + i, lanes) - vx::exp(take<V>(y + i, lanes)) * total, lanes);
    });
  }
}

// --- rows ----------------------------------------------------------------------------------------

int64_t last_size(const TensorImpl& t) {
  return t.ndim ? t.sizes[t.ndim - 1] : 1;
}

void infer_same(OpCall& c) {
  check_composite(c);
  set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list());
}

// f(V{}, in0, in1, out, rows, n) for blocks of rows along the last dim.
template <class F> void run_last(OpCall& c, const F& f) {
  const TensorImpl& first = *c.in[0];
  if (first.numel == 0) return;
  const DType compute = compute_type(first.dtype);
  const DenseInput a(c.in[0], compute), b(c.n_in > 1 ? c.in[1] : nullptr, compute);
  DenseOutput y(c.out[0], compute);
  const int64_t n = last_size(first);
  with_vector(compute, [&](auto v) {
    using T = Lane<decltype(v)>;
    const T *pa = a.as<T>(), *pb = b.as<T>();
    T* py = y.as<T>();
    for_rows(first.numel / n, n, [&](int64_t r, int64_t rows) {
      f(v, pa + r * n, pb ? pb + r * n : nullptr, py + r * n, rows, n);
    });
  });
  y.finish();
}

// x - max. The maximum takes no part in the gradient: the result does not depend on it.
Tensor shifted(const Tensor& x) {
  if (x.numel() == 0) return x * 1.0;
  return x - amax(x.detach(), -1, true);
}

const OpDef softmax_backward{
    "softmax_backward",
    "y * (g - sum(g * y))",
    {.kind = OpKind::Composite,
     .infer = infer_same,
     .decompose =
         [](OpCall& c, const Tensor* in) {
           const Tensor y = widened(in[0]), g = widened(in[1]);
           c.out[0] = converted(y * (g - sum(g * y, -1, true)), in[0].dtype());
         },
     .kernel = {{[](OpCall& c) {
                  run_last(c, [](auto v, auto* y, auto* g, auto* dx, int64_t rows, int64_t n) {
                    softmax_backward_rows<decltype(v)>(y, g, dx, rows, n);
                  });
                }},
                {softmax_backward_cuda}},
     .gradient_row = true,
     .autocast = Autocast::Widen}};

const OpDef softmax_op{
    "softmax",
    "exp(x - max) / sum",
    {.kind = OpKind::Composite,
     .infer = infer_same,
     .decompose =
         [](OpCall& c, const Tensor* in) {
           const Tensor e = exp(shifted(widened(in[0])));
           c.out[0] = converted(e * reciprocal(sum(e, -1, true)), in[0].dtype());
         },
     .kernel = {{[](OpCall& c) {
                  run_last(c, [](auto v, auto* x, auto*, auto* y, int64_t rows, int64_t n) {
                    softmax_rows<decltype(v)>(x, y, rows, n);
                  });
                }},
                {softmax_cuda}},
     .vjp =
         [](VjpCall& v) {
           const Tensor y = v.output(0);
           v.gin[0] = call(softmax_backward, {y, v.gout[0]});
         },
     .saves_outputs = 1,
     .autocast = Autocast::Widen}};

const OpDef log_softmax_backward{
    "log_softmax_backward",
    "g - exp(y) * sum(g)",
    {.kind = OpKind::Composite,
     .infer = infer_same,
     .decompose =
         [](OpCall& c, const Tensor* in) {
           const Tensor y = widened(in[0]), g = widened(in[1]);
           c.out[0] = converted(g - exp(y) * sum(g, -1, true), in[0].dtype());
         },
     .kernel = {{[](OpCall& c) {
                  run_last(c, [](auto v, auto* y, auto* g, auto* dx, int64_t rows, int64_t n) {
                    log_softmax_backward_rows<decltype(v)>(y, g, dx, rows, n);
                  });
                }},
                {log_softmax_backward_cuda}},
     .gradient_row = true,
     .autocast = Autocast::Widen}};

const OpDef log_softmax_op{
    "log_softmax",
    "x - max - log(sum(exp(x - max)))",
    {.kind = OpKind::Composite,
     .infer = infer_same,
     .decompose =
         [](OpCall& c, const Tensor* in) {
           const Tensor d = shifted(widened(in[0]));
           c.out[0] = converted(d - log(sum(exp(d), -1, true)), in[0].dtype());
         },
     .kernel = {{[](OpCall& c) {
                  run_last(c, [](auto v, auto* x, auto*, auto* y, int64_t rows, int64_t n) {
                    log_softmax_rows<decltype(v)>(x, y, rows, n);
                  });
                }},
                {log_softmax_cuda}},
     .vjp =
         [](VjpCall& v) {
           const Tensor y = v.output(0);
           v.gin[0] = call(log_softmax_backward, {y, v.gout[0]});
         },
     .saves_outputs = 1,
     .autocast = Autocast::Widen}};

Tensor over_dim(const OpDef& op, const Tensor& x, int64_t dim) {
  BRRR_CHECK(x.defined(), "{}: the tensor is undefined; assign one first", op.name);
  const int64_t d = wrap_dim(op.name, dim, static_cast<int>(x.dim()));
  if (d + 1 >= x.dim()) return call(op, {x});
  const Tensor last = transpose(x, d, -1);
  return transpose(call(op, {last}), d, -1).contiguous();
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) {
  return over_dim(softmax_op, x, dim);
}
Tensor log_softmax(const Tensor& x, int64_t dim) {
  return over_dim(log_softmax_op, x, dim);
}
Tensor Tensor::softmax(int64_t dim) const {
  return brrr::softmax(*this, dim);
}
Tensor Tensor::log_softmax(int64_t dim) const {
  return brrr::log_softmax(*this, dim);
}

}  // namespace brrr
