// Losses, each the mean over its elements.
#include "core/check.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/row_kernel.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// Of each row the maximum and sum(exp(x - max)) are kept, not one logsumexp: beside a large maximum
// a float has no room for the logarithm of the sum.

// --- cross_entropy: kernels ----------------------------------------------------------------------

template <class V>
Lane<V> mean_loss(const Lane<V>* x, const int64_t* ids, const Lane<V>* max, const Lane<V>* sum,
                  int64_t rows, int64_t n) {
  const auto total = sum_row<V>(rows, [&](int64_t i, int lanes) {
    V at_id{};
    for (int k = 0; k < lanes; ++k) at_id[k] = x[(i + k) * n + ids[i + k]];
    return vx::log(take<V>(sum + i, lanes)) - (at_id - take<V>(max + i, lanes));
  });
  return total / static_cast<Lane<V>>(rows);
}

constexpr vx::i32 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// dx = (softmax - 1 at id) * g.
template <class V>
void cross_entropy_backward_row(const Lane<V>* x, int64_t id, Lane<V> max, Lane<V> sum, V g,
                                Lane<V>* dx, int64_t n) {
  const V m = vx::splat(max), one = spread<V>(1), r = one / vx::splat(sum);
  map_row(n, [&](int64_t i, int lanes) {
    const V p = vx::exp(take<V>(x + i, lanes) - m) * r;
    const vx::b16 here = vx::eq(kLane, vx::splat(static_cast<int>(id - i)));
    put<V>(dx + i, vx::where(here, p - one, p) * g, lanes);
  });
}

// --- cross_entropy: rows -------------------------------------------------------------------------

void check_ids(const OpCall& c, const int64_t* ids) {
  const int64_t rows = c.in[0]->sizes[0], classes = c.in[0]->sizes[1];
  for (int64_t i = 0; i < rows; ++i) {
    BRRR_CHECK(ids[i] >= 0 && ids[i] < classes,
               "cross_entropy: id {} at position {} is out of range for {} classes", ids[i], i,
               classes);
  }
}

void cross_entropy_infer(OpCall& c) {
  const TensorImpl &x = *c.in[0], &ids = *c.in[1];
  check_composite(c);
  BRRR_CHECK(
      ids.dtype == kInt64, "cross_entropy: takes int64 class ids, got {}; {}", describe(&ids),
      is_floating(ids.dtype) ? "class probabilities are not supported, give ids or use log_softmax"
                             : "convert with to(kInt64)");
  BRRR_CHECK(x.ndim == 2 && ids.ndim == 1 && x.sizes[0] == ids.sizes[0],
             "cross_entropy: takes logits [n, classes] and ids [n], got {} and {}; flatten other "
             "dims with reshape",
             describe(&x), describe(&ids));
  const IntList column{x.sizes[0], 1};
  set_meta(c, 0, x.dtype, {});
  set_meta(c, 1, compute_type(x.dtype), column);
  set_meta(c, 2, compute_type(x.dtype), column);
}

void cross_entropy_cpu(OpCall& c) {
  const DenseInput ids(c.in[1], kInt64);
  check_ids(c, ids.as<int64_t>());
  const int64_t rows = c.in[0]->sizes[0], n = c.in[0]->sizes[1];
  const DType compute = compute_type(c.in[0]->dtype);
  const DenseInput x(c.in[0], compute);
  DenseOutput loss(c.out[0], compute), max(c.out[1], compute), sum(c.out[2], compute);
  with_vector(compute, [&](auto v) {
    using V = decltype(v);
    using T = Lane<V>;
    const T* px = x.as<T>();
    T *pm = max.as<T>(), *ps = sum.as<T>();
    for_rows(rows, n, [&](int64_t first, int64_t count) {
      const int64_t end = first + count;
      for (int64_t r = first; r < end; ++r) pm[r] = max_row<V>(px + r * n, n);
      for (int64_t r = first; r < end; ++r) ps[r] = exp_sum_row<V>(px + r * n, pm[r], n);
    });
    *loss.as<T>() = mean_loss<V>(px, ids.as<int64_t>(), pm, ps, rows, n);
  });
  loss.finish();
}

void cross_entropy_decompose(OpCall& c, const Tensor* in) {
  const Tensor x = widened(in[0]);
  const Tensor max = x.numel() ? amax(x.detach(), 1, true) : sum(x, 1, true);
  const Tensor d = x - max, s = sum(exp(d), 1, true);
  const Tensor at_id = gather(d, 1, unsqueeze(in[1], 1));
  c.out[0] = converted(mean(log(s) - at_id), in[0].dtype());
  c.out[1] = max;
  c.out[2] = s;
}

void cross_entropy_backward_cpu(OpCall& c) {
  const DenseInput ids(c.in[1], kInt64);
  check_ids(c, ids.as<int64_t>());
  const int64_t rows = c.in[0]->sizes[0], n = c.in[0]->sizes[1];
  const DType compute = compute_type(c.in[0]->dtype);
  const DenseInput x(c.in[0], compute), max(c.in[2], compute), sum(c.in[3], compute),
      g(c.in[4], compute);
  DenseOutput dx(c.out[0], compute);
  with_vector(compute, [&](auto v) {
    using V = decltype(v);
    using T = Lane<V>;
    const V scale = vx::splat(*g.as<T>()) / spread<V>(static_cast<double>(rows));
    for_rows(rows, n, [&](int64_t first, int64_t count) {
      for (int64_t r = first; r < first + count; ++r) {
        cross_entropy_backward_row<V>(x.as<T>() + r * n, ids.as<int64_t>()[r], max.as<T>()[r],
                                      sum.as<T>()[r], scale, dx.as<T>() + r * n, n);
      }
    });
  });
  dx.finish();
}

const CompositeOp cross_entropy_backward{
    "cross_entropy_backward",
    "(softmax(logits) - one_hot(ids)) * g / n",
    {.infer =
         [](OpCall& c) {
           check_composite(c);
           set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list());
         },
     .decompose =
         [](OpCall& c, const Tensor* in) {
           const Tensor x = widened(in[0]);
           // The softmax does not depend on the maximum, so neither does its gradient.
           const Tensor p = exp(x - in[2].detach()) * reciprocal(in[3]);
           const Tensor scale = widened(in[4]) / static_cast<double>(x.size(0));
           c.out[0] = converted((p - one_hot(in[1], x.size(1))) * scale, in[0].dtype());
         },
     .cpu = cross_entropy_backward_cpu,
     .gradient_row = true}};

void cross_entropy_vjp(VjpCall& v) {
  if (!v.needs(0)) return;
  const Tensor logits = v.input(0), ids = v.input(1), max = v.output(1), sum = v.output(2);
  if (v.gout[0].defined()) {
    v.gin[0] = CompositeCall(cross_entropy_backward,
                             {logits.impl(), ids.impl(), max.impl(), sum.impl(), v.gout[0].impl()})
                   .run();
  }
  if (v.gout[2].defined()) {  // A second derivative, through the sum that the first one read.
    const Tensor more = converted(exp(widened(logits) - max.detach()) * v.gout[2], logits.dtype());
    v.gin[0] = v.gin[0].defined() ? v.gin[0] + more : more;
  }
}

const CompositeOp cross_entropy_op{"cross_entropy",
                                   "mean of -log softmax(logits)[i, ids[i]]",
                                   {.n_out = 3,
                                    .infer = cross_entropy_infer,
                                    .decompose = cross_entropy_decompose,
                                    .cpu = cross_entropy_cpu,
                                    .vjp = cross_entropy_vjp,
                                    .saves_inputs = 0b11,
                                    .saves_outputs = 0b110}};

// --- the others ----------------------------------------------------------------------------------

// By element. A row, because max(x, 0) + log1p(exp(-|x|)) taken apart has a wrong gradient at 0.
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

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& ids) {
  BRRR_CHECK(logits.defined() && ids.defined(),
             "cross_entropy: an operand is undefined; assign one first");
  return CompositeCall(cross_entropy_op, {logits.impl(), ids.impl()}).run();
}

Tensor mse_loss(const Tensor& a, const Tensor& b) {
  check_pair("mse_loss", a, b);
  return mean(square(a - b));
}

Tensor bce_with_logits(const Tensor& x, const Tensor& targets) {
  check_pair("bce_with_logits", x, targets);
  return mean(call(bce_with_logits_row, x, targets));
}

}  // namespace brrr
