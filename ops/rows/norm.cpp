// Layer norm and root-mean-square norm: one set of kernels, with and without centring.
//
// Rows keep the statistics as outputs (sizes of x, 1 in the normalized dims; in the compute type).
// Attributes: word 0 the number of normalized dims, word 1 eps.
#include "core/check.h"
#include "ops/rows/nn_kernels.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/kinds/row_kernel.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// --- kernels -------------------------------------------------------------------------------------

// A block of rows; weight and bias may be null.
template <class T> struct NormRows {
  const T *x, *weight, *bias;
  T *y, *mean, *rstd;
  int64_t rows, n;
  double eps;
};

template <class V, bool centred> V centre(const Lane<V>* x, V mean, int64_t i, int lanes) {
  const V v = take<V>(x + i, lanes);
  if constexpr (centred)
    return v - mean;
  else
    return v;
}

template <class V, bool centred> void norm_rows(const NormRows<Lane<V>>& p) {
  const V count = spread<V>(static_cast<double>(p.n));
  for (int64_t r = 0; centred && r < p.rows; ++r) {
    p.mean[r] =
        (vx::splat(sum_row<V>(
             p.n, [x = p.x + r * p.n](int64_t i, int lanes) { return take<V>(x + i, lanes); })) /
         count)[0];
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    const V mean = centred ? vx::splat(p.mean[r]) : V{};
    const V squares = vx::splat(sum_row<V>(p.n, [=, x = p.x + r * p.n](int64_t i, int lanes) {
      const V d = centre<V, centred>(x, mean, i, lanes);
      return d * d;
    }));
    p.rstd[r] = vx::rsqrt(squares / count + spread<V>(p.eps))[0];
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    const V mean = centred ? vx::splat(p.mean[r]) : V{}, rstd = vx::splat(p.rstd[r]);
    map_row(p.n, [=, x = p.x + r * p.n, y = p.y + r * p.n, w = p.weight, b = p.bias](int64_t i,
                                                                                     int lanes) {
      V v = centre<V, centred>(x, mean, i, lanes) * rstd;
      if (w) v = v * take<V>(w + i, lanes);
      if (b) v = v + take<V>(b + i, lanes);
      put<V>(y + i, v, lanes);
    });
  }
}

// dweight and dbias, if not null, take the rows' parts.
template <class T> struct NormBackwardRows {
  const T *x, *weight, *g, *mean, *rstd;
  T *dx, *dweight, *dbias;
  int64_t rows, n;
};

template <class V, bool centred> void norm_backward_rows(const NormBackwardRows<Lane<V>>& p) {
  const V count = spread<V>(static_cast<double>(p.n));
  Lane<V> along_1[kRowBlock] = {}, along_h[kRowBlock];
  // The mean of the weighted gradient; it and...
  for (int64_t r = 0; centred && r < p.rows; ++r) {
    along_1[r] = sum_row<V>(p.n, [w = p.weight, g = p.g + r * p.n](int64_t i, int lanes) {
      const V v = take<V>(g + i, lanes);
      return w ? v * take<V>(w + i, lanes) : v;
    });
  }
  // ...what goes along the normalized row cannot change x: both are taken away.
  for (int64_t r = 0; r < p.rows; ++r) {
    const V mean = centred ? vx::splat(p.mean[r]) : V{}, rstd = vx::splat(p.rstd[r]);
    along_h[r] = sum_row<V>(p.n, [=, w = p.weight, g = p.g + r * p.n, x = p.x + r * p.n](
                                     int64_t i, int lanes) {
      const V v = take<V>(g + i, lanes);
      return (w ? v * take<V>(w + i, lanes) : v) * (centre<V, centred>(x, mean, i, lanes) * rstd);
    });
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    const V mean = centred ? vx::splat(p.mean[r]) : V{}, rstd = vx::splat(p.rstd[r]);
    const V c1 = vx::splat(along_1[r]) / count, ch = vx::splat(along_h[r]) / count;
    map_row(p.n, [=, w = p.weight, g = p.g + r * p.n, x = p.x + r * p.n, dx = p.dx + r * p.n,
                  dw = p.dweight, db = p.dbias](int64_t i, int lanes) {
      const V v = take<V>(g + i, lanes), h = centre<V, centred>(x, mean, i, lanes) * rstd;
      V d = w ? v * take<V>(w + i, lanes) : v;
      if constexpr (centred) d = d - c1;
      put<V>(dx + i, (d - h * ch) * rstd, lanes);
      if (dw) put<V>(dw + i, take<V>(dw + i, lanes) + v * h, lanes);
      if (db) put<V>(db + i, take<V>(db + i, lanes) + v, lanes);
    });
  }
}

// out = the sum of `blocks` rows of n, one after the other.
template <class V>
void add_blocks(const Lane<V>* in, int64_t stride, int64_t blocks, Lane<V>* out, int64_t n) {
  map_row(n, [&](int64_t i, int lanes) {
    V sum = take<V>(in + i, lanes);
    for (int64_t b = 1; b < blocks; ++b) sum = sum + take<V>(in + b * stride + i, lanes);
    put<V>(out + i, sum, lanes);
  });
}

// --- drivers -------------------------------------------------------------------------------------

template <bool centred> void norm_cpu(OpCall& c) {
  const NormShape s(*c.in[0], c.attrs);
  const DType compute = compute_type(c.in[0]->dtype);
  const DenseInput x(c.in[0], compute), w(c.in[1], compute),
      b(centred ? c.in[2] : nullptr, compute);
  DenseOutput y(c.out[0], compute), m(c.out[1], compute), rstd(c.out[c.n_out - 1], compute);
  with_vector(compute, [&](auto v) {
    using V = decltype(v);
    using T = Lane<V>;
    for_rows(s.rows, s.n, [&](int64_t r, int64_t rows) {
      norm_rows<V, centred>({x.as<T>() + r * s.n, w.as<T>(), b.as<T>(), y.as<T>() + r * s.n,
                             m.as<T>() + r, rstd.as<T>() + r, rows, s.n, c.attrs.d(1)});
    });
  });
  y.finish();
}

int results(const OpCall& c) {
  return c.n_out - c.op->n_scratch;
}
int64_t row_blocks(const NormShape& s) {
  return std::max<int64_t>(1, (s.rows + kReduceBlock - 1) / kReduceBlock);
}

// Weight gradients add up in the order of a column reduction: blocks of rows, then the blocks,
// whose sums are the scratch output.
template <bool centred> void norm_backward_cpu(OpCall& c) {
  constexpr int g_at = centred ? 4 : 3;
  const NormShape s(*c.in[0], c.attrs);
  const DType compute = compute_type(c.in[0]->dtype);
  const DenseInput x(c.in[0], compute), w(c.in[1], compute), m(c.in[2], compute),
      rstd(c.in[g_at - 1], compute), g(c.in[g_at], compute);
  const int sums = results(c) - 1;
  const int64_t blocks = row_blocks(s);
  DenseOutput dx(c.out[0], compute);
  with_vector(compute, [&](auto v) {
    using V = decltype(v);
    using T = Lane<V>;
    auto run = [&](int64_t r, int64_t rows, T* dweight, T* dbias) {
      const int64_t at = r * s.n;
      norm_backward_rows<V, centred>({x.as<T>() + at, w.as<T>(), g.as<T>() + at, m.as<T>() + r,
                                      rstd.as<T>() + r, dx.as<T>() + at, dweight, dbias, rows,
                                      s.n});
    };
    if (!sums) {
      for_rows(s.rows, s.n, [&](int64_t r, int64_t rows) { run(r, rows, nullptr, nullptr); });
      return;
    }
    T* part = reinterpret_cast<T*>(c.out[sums + 1].impl()->data());
    parallel_for(blocks, std::max<int64_t>(1, kRowGrain / (kReduceBlock * s.n + 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t k = begin; k < end; ++k) {
                     T* dweight = part + k * sums * s.n;
                     std::fill_n(dweight, sums * s.n, T(0));
                     const int64_t last = std::min((k + 1) * kReduceBlock, s.rows);
                     for (int64_t r = k * kReduceBlock; r < last; r += row_block(s.n)) {
                       run(r, std::min(row_block(s.n), last - r), dweight,
                           sums == 2 ? dweight + s.n : nullptr);
                     }
                   }
                 });
    for (int k = 0; k < sums; ++k) {
      DenseOutput out(c.out[k + 1], compute);
      add_blocks<V>(part + k * s.n, sums * s.n, blocks, out.as<T>(), s.n);
      out.finish();
    }
  });
  dx.finish();
}

// --- shapes --------------------------------------------------------------------------------------

IntList trailing(const IntList& sizes, int64_t n) {
  return {sizes.end() - n, static_cast<size_t>(n)};
}
IntList norm_dims(int64_t n) {
  IntList dims;
  for (int64_t d = 1; d <= n; ++d) dims.push_back(-d);
  return dims;
}

void check_affine(const OpCall& c, int i, const char* what) {
  const TensorImpl *x = c.in[0], *t = c.in[i];
  if (!t) return;
  const IntList want = trailing(x->size_list(), c.attrs.v[0]);
  BRRR_CHECK(t->size_list() == want,
             "{}: {} is {}, but the normalized shape of {} is {}; give one "
             "{} for each normalized element",
             c.op->name, what, describe(t), describe(x), to_string(want), what);
  BRRR_CHECK(is_floating(t->dtype) && compute_type(t->dtype) == compute_type(x->dtype),
             "{}: {} is {} and x is {}; convert one with to(dtype)", c.op->name, what, describe(t),
             describe(x));
}

template <bool centred> void norm_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  check_composite(c);
  check_affine(c, 1, "weight");
  if (centred) check_affine(c, 2, "bias");
  IntList stats = x.size_list();
  for (int64_t d = 1; d <= c.attrs.v[0]; ++d) stats[static_cast<int>(x.ndim - d)] = 1;
  set_meta(c, 0, x.dtype, x.size_list());
  for (int k = 1; k < c.n_out; ++k) set_meta(c, k, compute_type(x.dtype), stats);
}

void norm_backward_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  check_composite(c);
  set_meta(c, 0, x.dtype, x.size_list());
  const int sums = results(c) - 1;
  for (int k = 1; k <= sums; ++k) {
    set_meta(c, k, c.in[1] ? c.in[1]->dtype : x.dtype, trailing(x.size_list(), c.attrs.v[0]));
  }
  const NormShape s(x, c.attrs);
  if (sums) set_meta(c, sums + 1, compute_type(x.dtype), {row_blocks(s), sums, s.n});
}

// --- decompositions ------------------------------------------------------------------------------

template <bool centred> void norm_decompose(OpCall& c, const Tensor* in) {
  const IntList dims = norm_dims(c.attrs.v[0]);
  Tensor d = widened(in[0]);
  if (centred) {
    c.out[1] = mean(d, dims, true);
    d = d - c.out[1];
  }
  const Tensor rstd = rsqrt(mean(d * d, dims, true) + c.attrs.d(1));
  Tensor y = d * rstd;
  if (in[1].defined()) y = y * widened(in[1]);
  if (centred && in[2].defined()) y = y + widened(in[2]);
  c.out[0] = converted(y, in[0].dtype());
  c.out[c.n_out - 1] = rstd;
}

template <bool centred> void norm_backward_decompose(OpCall& c, const Tensor* in) {
  constexpr int g_at = centred ? 4 : 3;
  const IntList dims = norm_dims(c.attrs.v[0]);
  const Tensor x = widened(in[0]), g = widened(in[g_at]), &rstd = in[g_at - 1];
  const Tensor h = (centred ? x - in[2] : x) * rstd;
  const Tensor gw = in[1].defined() ? g * widened(in[1]) : g;
  const Tensor along_h = mean(gw * h, dims, true);
  const Tensor d = centred ? gw - mean(gw, dims, true) : gw;
  c.out[0] = converted((d - h * along_h) * rstd, in[0].dtype());
  if (results(c) == 1) return;
  const IntList shape = trailing(x.sizes(), c.attrs.v[0]);
  const DType dtype = in[1].defined() ? in[1].dtype() : in[0].dtype();
  c.out[1] = converted(sum_to(g * h, shape), dtype);
  if (centred) c.out[2] = converted(sum_to(g, shape), dtype);
}

// --- rows ----------------------------------------------------------------------------------------

template <bool centred> OpSpec backward_parts(uint8_t n_out, uint8_t n_scratch) {
  return {.kind = OpKind::Composite,
          .n_out = n_out,
          .n_scratch = n_scratch,
          .infer = norm_backward_infer,
          .decompose = norm_backward_decompose<centred>,
          .kernel = {{norm_backward_cpu<centred>},
                     {centred ? layer_norm_backward_cuda : rms_norm_backward_cuda}},
          .gradient_row = true,
          .autocast = Autocast::Widen};
}
const OpDef layer_norm_backward{"layer_norm_backward",
                                "dx of layer_norm from x, weight, mean, rstd, g",
                                backward_parts<true>(1, 0)};
const OpDef layer_norm_backward_affine{"layer_norm_backward_affine",
                                       "dx, dweight and dbias of layer_norm",
                                       backward_parts<true>(4, 1)};
const OpDef rms_norm_backward{"rms_norm_backward", "dx of rms_norm from x, weight, rstd, g",
                              backward_parts<false>(1, 0)};
const OpDef rms_norm_backward_affine{"rms_norm_backward_affine", "dx and dweight of rms_norm",
                                     backward_parts<false>(3, 1)};

// d(mean, rstd)/dx, which only a second derivative asks for.
Tensor statistics_gradient(const Tensor& x, const Tensor& mean, const Tensor& rstd,
                           const Tensor& g_mean, const Tensor& g_rstd, double count) {
  Tensor total;
  if (g_rstd.defined()) {
    const Tensor d = mean.defined() ? widened(x) - mean : widened(x);
    total = d * (g_rstd * rstd * rstd * rstd * (-1.0 / count));
  }
  if (g_mean.defined()) {
    const Tensor part = expand(g_mean * (1.0 / count), x.sizes());
    total = total.defined() ? total + part : part.clone();
  }
  return total;
}

template <bool centred> void norm_vjp(VjpCall& v) {
  constexpr int last = centred ? 2 : 1;
  const Tensor &g = v.gout[0], &g_mean = centred ? v.gout[1] : Tensor(), &g_rstd = v.gout[last];
  const Tensor x = v.input(0), w = v.node.in[1].saved ? v.input(1) : Tensor(),
               mean = centred ? v.output(1) : Tensor(), rstd = v.output(last);
  if (g.defined()) {
    const bool affine = v.needs(1) || (centred && v.needs(2));
    const OpDef& op = centred ? (affine ? layer_norm_backward_affine : layer_norm_backward)
                              : (affine ? rms_norm_backward_affine : rms_norm_backward);
    const int64_t n = v.attrs().v[0];
    const Outputs d =
        centred ? call_outputs(op, {x, w, mean, rstd, g}, n) : call_outputs(op, {x, w, rstd, g}, n);
    v.gin[0] = d[0];
    if (v.needs(1)) v.gin[1] = d[1];
    if (centred && v.needs(2)) v.gin[2] = converted(d[2], v.meta(2).dtype);
  }
  if (!v.needs(0) || !(g_mean.defined() || g_rstd.defined())) return;
  const auto count = static_cast<double>(numel_of(trailing(x.sizes(), v.attrs().v[0])));
  const Tensor more =
      converted(statistics_gradient(x, mean, rstd, g_mean, g_rstd, count), x.dtype());
  v.gin[0] = g.defined() ? v.gin[0] + more : more;
}

const OpDef layer_norm_op{"layer_norm",
                          "(x - mean) / sqrt(var + eps) * weight + bias over trailing dims",
                          {.kind = OpKind::Composite,
                           .n_out = 3,
                           .infer = norm_infer<true>,
                           .decompose = norm_decompose<true>,
                           .kernel = {{norm_cpu<true>}, {layer_norm_cuda}},
                           .vjp = norm_vjp<true>,
                           .saves_inputs = 0b11,
                           .saves_outputs = 0b110,
                           .autocast = Autocast::Widen}};

const OpDef rms_norm_op{"rms_norm",
                        "x / sqrt(mean(x^2) + eps) * weight over trailing dims",
                        {.kind = OpKind::Composite,
                         .n_out = 2,
                         .infer = norm_infer<false>,
                         .decompose = norm_decompose<false>,
                         .kernel = {{norm_cpu<false>}, {rms_norm_cuda}},
                         .vjp = norm_vjp<false>,
                         .saves_inputs = 0b11,
                         .saves_outputs = 0b10,
                         .autocast = Autocast::Widen}};

void check_normalized(const char* op, const Tensor& x, const IntList& normalized) {
  BRRR_CHECK(x.defined(), "{}: the tensor is undefined; assign one first", op);
  const int n = normalized.size();
  BRRR_CHECK(n > 0 && n <= x.dim() && trailing(x.sizes(), n) == normalized,
             "{}: the normalized shape {} is not the trailing sizes of {}; give the sizes of its "
             "last dims",
             op, to_string(normalized), describe(x.impl()));
}

}  // namespace

Tensor layer_norm(const Tensor& x, const IntList& normalized, const Tensor& weight,
                  const Tensor& bias, double eps) {
  check_normalized("layer_norm", x, normalized);
  return call(layer_norm_op, {x, weight, bias}, int64_t{normalized.size()}, eps);
}

Tensor rms_norm(const Tensor& x, const IntList& normalized, const Tensor& weight, double eps) {
  check_normalized("rms_norm", x, normalized);
  return call(rms_norm_op, {x, weight}, int64_t{normalized.size()}, eps);
}

}  // namespace brrr
