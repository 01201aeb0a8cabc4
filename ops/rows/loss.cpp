// Losses, each the mean over its elements.
#include <algorithm>

#include "core/check.h"
#include "ops/library_ops.h"
#include "ops/rows/nn_kernels.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/kinds/row_kernel.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// Of each row the maximum and sum(exp(x - max)) are kept, not one logsumexp: beside a large maximum
// a float has no room for the logarithm of the sum.
//
// With d = x - max, L = log(sum(exp(d))) and smoothing e over C classes, a row's loss is
// L - ((1 - e) d[id] + e / C sum(d)), as the targets sum to 1. Without smoothing d[id] is all that
// is read of d, so that other classes may have logits of -inf.

// --- cross_entropy: kernels ----------------------------------------------------------------------

int64_t counted(const Targets& t, const int64_t* ids, int64_t rows) {
  return rows - std::count(ids, ids + rows, t.ignored);
}

template <class V>
Lane<V> mean_loss(const Lane<V>* x, const int64_t* ids, const Targets& t, const Lane<V>* max,
                  const Lane<V>* sum, const Lane<V>* all, int64_t rows, int64_t n) {
  const auto total = sum_row<V>(rows, [&](int64_t i, int lanes) {
    V at_id{};
    vx::i32 counts{};
    for (int k = 0; k < lanes; ++k) {
      const int64_t id = ids[i + k];
      if (id == t.ignored) continue;
      at_id[k] = x[(i + k) * n + id];
      counts[k] = 1;
    }
    V wanted = at_id - take<V>(max + i, lanes);
    if (all) wanted = wanted * spread<V>(t.hit) + take<V>(all + i, lanes) * spread<V>(t.miss);
    const V loss = vx::log(take<V>(sum + i, lanes)) - wanted;
    return vx::where(vx::ne(counts, vx::i32{}), loss, V{});
  });
  return total / static_cast<Lane<V>>(counted(t, ids, rows));
}

constexpr vx::i32 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// dx = (softmax - target) * g.
template <class V>
void cross_entropy_backward_row(const Lane<V>* x, int64_t id, const Targets& t, Lane<V> max,
                                Lane<V> sum, V g, Lane<V>* dx, int64_t n) {
  if (id == t.ignored) {
    std::fill(dx, dx + n, Lane<V>{0});
    return;
  }
  const V m = vx::splat(max), r = spread<V>(1) / vx::splat(sum);
  const V miss = spread<V>(t.miss), hit = spread<V>(t.hit) + miss;
  map_row(n, [&](int64_t i, int lanes) {
    const V p = vx::exp(take<V>(x + i, lanes) - m) * r;
    const vx::b16 here = vx::eq(kLane, vx::splat(static_cast<int>(id - i)));
    put<V>(dx + i, (p - vx::where(here, hit, miss)) * g, lanes);
  });
}

// --- cross_entropy: rows -------------------------------------------------------------------------

void check_ids(const OpCall& c) {
  const int64_t rows = c.in[0]->sizes[0], classes = c.in[0]->sizes[1];
  const Targets t(c.attrs, classes);
  const DenseInput given(c.in[1], kInt64);
  const int64_t* ids = given.as<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    BRRR_CHECK((ids[i] >= 0 && ids[i] < classes) || ids[i] == t.ignored,
               "cross_entropy: id {} at position {} is out of range for {} classes", ids[i], i,
               classes);
  }
}

/// For the decompositions: which rows count, as [n, 1]; ids that exist in every row; how many
/// count.
struct Counted {
  Tensor rows, ids, count;
  Counted(const Tensor& given, const Targets& t, DType dtype) {
    const Tensor counts = given != t.ignored;
    rows = unsqueeze(counts, 1);
    ids = where(counts, given, 0);
    count = sum(counts, {}).to(dtype);
  }
};

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
  const int64_t rows = c.in[0]->sizes[0], n = c.in[0]->sizes[1];
  const Targets t(c.attrs, n);
  const DType compute = compute_type(c.in[0]->dtype);
  const DenseInput x(c.in[0], compute);
  DenseOutput loss(c.out[0], compute), max(c.out[1], compute), sum(c.out[2], compute);
  Tensor all;  // sum(x - max) of each row, where smoothing needs it.
  if (t.smoothing != 0) all = raw_empty({rows}, compute, c.in[0]->device);
  with_vector(compute, [&](auto v) {
    using V = decltype(v);
    using T = Lane<V>;
    const T* px = x.as<T>();
    T *pm = max.as<T>(), *ps = sum.as<T>();
    T* pa = all.defined() ? reinterpret_cast<T*>(all.impl()->data()) : nullptr;
    for_rows(rows, n, [&](int64_t first, int64_t count) {
      const int64_t end = first + count;
      for (int64_t r = first; r < end; ++r) pm[r] = max_row<V>(px + r * n, n);
      for (int64_t r = first; r < end; ++r) ps[r] = exp_sum_row<V>(px + r * n, pm[r], n);
      for (int64_t r = first; pa && r < end; ++r) {
        const V m = vx::splat(pm[r]);
        pa[r] = sum_row<V>(
            n, [=, row = px + r * n](int64_t i, int lanes) { return take<V>(row + i, lanes) - m; });
      }
    });
    *loss.as<T>() = mean_loss<V>(px, ids.as<int64_t>(), t, pm, ps, pa, rows, n);
  });
  loss.finish();
}

// The sums that smoothing needs, by row.
int64_t cross_entropy_scratch(const OpCall& c) {
  return packed_bytes(c) + (c.attrs.n ? scratch_for(c.in[0]->sizes[0], sizeof(double)) : 0);
}

void cross_entropy_decompose(OpCall& c, const Tensor* in) {
  const Tensor x = widened(in[0]);
  const Targets t(c.attrs, x.size(1));
  const Counted counted(in[1], t, x.dtype());
  const Tensor max = x.numel() ? amax(x.detach(), 1, true) : sum(x, 1, true);
  const Tensor d = x - max, s = sum(exp(d), 1, true);
  Tensor wanted = gather(d, 1, unsqueeze(counted.ids, 1));
  if (t.smoothing != 0) wanted = wanted * t.hit + sum(d, 1, true) * t.miss;
  const Tensor losses = where(counted.rows, log(s) - wanted, 0.0);
  c.out[0] = converted(sum(losses) / counted.count, in[0].dtype());
  c.out[1] = max;
  c.out[2] = s;
}

void cross_entropy_backward_cpu(OpCall& c) {
  const DenseInput ids(c.in[1], kInt64);
  const int64_t rows = c.in[0]->sizes[0], n = c.in[0]->sizes[1];
  const Targets t(c.attrs, n);
  // All ignored: the gradient is 0.
  const int64_t count = std::max<int64_t>(1, counted(t, ids.as<int64_t>(), rows));
  const DType compute = compute_type(c.in[0]->dtype);
  const DenseInput x(c.in[0], compute), max(c.in[2], compute), sum(c.in[3], compute),
      g(c.in[4], compute);
  DenseOutput dx(c.out[0], compute);
  with_vector(compute, [&](auto v) {
    using V = decltype(v);
    using T = Lane<V>;
    const V scale = vx::splat(*g.as<T>()) / spread<V>(static_cast<double>(count));
    for_rows(rows, n, [&](int64_t first, int64_t some) {
      for (int64_t r = first; r < first + some; ++r) {
        cross_entropy_backward_row<V>(x.as<T>() + r * n, ids.as<int64_t>()[r], t, max.as<T>()[r],
                                      sum.as<T>()[r], scale, dx.as<T>() + r * n, n);
      }
    });
  });
  dx.finish();
}

const OpDef cross_entropy_backward{
    "cross_entropy_backward",
    "(softmax(logits) - targets) * g / n, 0 in ignored rows",
    {.kind = OpKind::Composite,
     .infer =
         [](OpCall& c) {
           check_composite(c);
           set_meta(c, 0, c.in[0]->dtype, c.in[0]->size_list());
         },
     .decompose =
         [](OpCall& c, const Tensor* in) {
           const Tensor x = widened(in[0]);
           const Targets t(c.attrs, x.size(1));
           const Counted counted(in[1], t, x.dtype());
           // The softmax does not depend on the maximum, so neither does its gradient.
           const Tensor p = exp(x - in[2].detach()) * reciprocal(in[3]);
           const Tensor here = one_hot(counted.ids, x.size(1)).to(x.dtype());
           const Tensor scale = widened(in[4]) / maximum(counted.count, 1.0);
           const Tensor dx = (p - (here * t.hit + t.miss)) * scale;
           c.out[0] = converted(where(counted.rows, dx, 0.0), in[0].dtype());
         },
     .check_values = check_ids,
     .kernel = {{cross_entropy_backward_cpu}, {cross_entropy_backward_cuda}},
     .gradient_row = true,
     .autocast = Autocast::Widen}};

void cross_entropy_vjp(VjpCall& v) {
  if (!v.needs(0)) return;
  const Tensor logits = v.input(0), ids = v.input(1), max = v.output(1), sum = v.output(2);
  if (v.gout[0].defined()) {
    v.gin[0] = call(cross_entropy_backward, {logits, ids, max, sum, v.gout[0]}, v.attrs().list());
  }
  if (v.gout[2].defined()) {  // A second derivative, through the sum that the first one read.
    const Tensor more = converted(exp(widened(logits) - max.detach()) * v.gout[2], logits.dtype());
    v.gin[0] = v.gin[0].defined() ? v.gin[0] + more : more;
  }
}

const OpDef cross_entropy_op{"cross_entropy",
                             "mean of -log softmax(logits)[i, ids[i]] over counted rows",
                             {.kind = OpKind::Composite,
                              .n_out = 3,
                              .infer = cross_entropy_infer,
                              .decompose = cross_entropy_decompose,
                              .check_values = check_ids,
                              .kernel = {{cross_entropy_cpu}, {cross_entropy_cuda}},
                              .scratch = cross_entropy_scratch,
                              .vjp = cross_entropy_vjp,
                              .saves_inputs = 0b11,
                              .saves_outputs = 0b110,
                              .autocast = Autocast::Widen}};

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

Tensor cross_entropy(const Tensor& logits, const Tensor& ids, const CrossEntropyOptions& options) {
  BRRR_CHECK(logits.defined() && ids.defined(),
             "cross_entropy: an operand is undefined; assign one first");
  BRRR_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
             "cross_entropy: label_smoothing must be in [0, 1], got {}", options.label_smoothing);
  constexpr CrossEntropyOptions defaults;
  if (options.ignore_index == defaults.ignore_index && options.label_smoothing == 0) {
    return call(cross_entropy_op, {logits, ids});
  }
  return call(cross_entropy_op, {logits, ids}, options.ignore_index, options.label_smoothing);
}

Tensor mse_loss(const Tensor& a, const Tensor& b) {
  check_pair("mse_loss", a, b);
  // A mask may be a target, but bool has no differences.
  const auto number = [](const Tensor& x, const Tensor& other) {
    return x.dtype() == kBool ? x.to(other.dtype()) : x;
  };
  return mean(square(number(a, b) - number(b, a)));
}

Tensor bce_with_logits(const Tensor& x, const Tensor& targets) {
  check_pair("bce_with_logits", x, targets);
  return mean(call(bce_with_logits_row, x, targets));
}

}  // namespace brrr
