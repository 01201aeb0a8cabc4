// cross_entropy on a GPU: a row of logits is read once; its gradient is read and written once.
#include "ops/rows/nn_kernels.h"
#include "ops/kinds/row_device.h"

namespace brrr {

namespace {

BRRR_DEVICE_STRUCT(CrossEntropyArguments, {
  const char* x;
  const char* ids;
  char* max;
  char* sum;
  char* to;
  const char* scale;
  long rows;
  long n;
  long ignored;
  double hit;
  double miss;
  char* fault;
  long op;
});

// What each row adds to the loss; 0 where it does not count. kFlags: with smoothing.
constexpr auto rows_text = row_text(R"(
BLOCK_KERNEL(cross_entropy_rows, CrossEntropyArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand x(p, p.x, n);
  const MaxSum s = max_and_sum<false>(x, n);
  const auto less = [&](long, Group d) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] - s.max;
    return d;
  };
  TCV all{};  // sum(x - max)
  if (kFlags) all = sum_groups(n, less, x);
  if (lane() != 0 || row >= p.rows) return;
  store((TC*)p.max + row, s.max);
  store((TC*)p.sum + row, s.sum);
  const long id = ((const long*)p.ids)[row];
  TCV loss{};
  if (id != p.ignored && in_range(p.fault, id, p.n, p.op)) {
    TCV wanted = get((const T*)p.x + row * p.n + id) - s.max;
    if (kFlags) wanted = wanted * (TC)p.hit + all * (TC)p.miss;
    loss = log(s.sum) - wanted;
  }
  store((TC*)p.to + row, loss);
}
)");
constexpr RowKernel rows_kernel =
    row_kernel("cross_entropy_rows", CrossEntropyArgumentsText, rows_text.data());

BRRR_DEVICE_STRUCT(MeanArguments, {
  const char* losses;
  const char* ids;
  const char* g;
  char* to;
  long rows;
  long ignored;
});

// The losses' mean over the rows that count. The losses are summed as a row of their own.
constexpr auto mean_text = row_text(R"(
BLOCK_KERNEL(cross_entropy_mean, MeanArguments, 1024) {
  TCV sum{};
  i64 count{};
#pragma unroll 4
  for (long r = threadIdx.x; r < p.rows; r += 1024) {
    sum = sum + load((const TC*)p.losses + r);
    count = count + (long)(((const long*)p.ids)[r] != p.ignored);
  }
  sum = across(sum, Add{});
  count = across(count, Add{});
  if (threadIdx.x == 0) put((T*)p.to, sum / (TC)count[0]);
}
)");
constexpr DeviceKernel mean_kernel{"cross_entropy_mean", MeanArgumentsText, 1024, mean_text.data()};

// What each row that counts is weighed with; U is g's dtype. Where none does, nothing reads it.
constexpr auto scale_text = row_text(R"(
BLOCK_KERNEL(cross_entropy_scale, MeanArguments, 1024) {
  i64 count{};
#pragma unroll 4
  for (long r = threadIdx.x; r < p.rows; r += 1024) {
    count = count + (long)(((const long*)p.ids)[r] != p.ignored);
  }
  count = across(count, Add{});
  if (threadIdx.x == 0) store((TC*)p.to, get_u((const U*)p.g) / (TC)count[0]);
}
)");
constexpr DeviceKernel scale_kernel{"cross_entropy_scale", MeanArgumentsText, 1024,
                                    scale_text.data()};

// (softmax - target) * scale, each element's arithmetic as on the CPU.
constexpr auto backward_text = row_text(R"(
BLOCK_KERNEL(cross_entropy_backward, CrossEntropyArguments, kThreads) {
  const long row = this_row();
  const long id = row < p.rows ? ((const long*)p.ids)[row] : p.ignored;
  const bool counts = id != p.ignored && in_range(p.fault, id, p.n, p.op);
  const Operand x(p, p.x, counts ? p.n : 0);
  if (row >= p.rows) return;
  T* dx = (T*)p.to + row * p.n;
  if (!counts) {
    map_groups(p.n, dx, [](long) { return Group{}; });
    return;
  }
  const TCV max = load((const TC*)p.max + row), r = (TC)1 / load((const TC*)p.sum + row);
  const TCV scale = load((const TC*)p.scale);
  const TCV miss = splat((TC)p.miss), hit = splat((TC)p.hit) + miss;
  const auto gradient = [&](long i, Group d) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      const TCV softmax = exp(d.v[u] - max) * r;
      d.v[u] = (softmax - (i + u == id ? hit : miss)) * scale;
    }
    return d;
  };
  map_groups(p.n, dx, gradient, x);
}
)");
constexpr RowKernel backward_kernel =
    row_kernel("cross_entropy_backward", CrossEntropyArgumentsText, backward_text.data());

// The threads of a block on one row, whatever its length.
Variant one_block(DType t, DType u) {
  return {.t = t, .u = u, .n = RowForm(INT64_MAX, t).bits(0)};
}

CrossEntropyArguments arguments(const OpCall& c, const RowInput& x, const DenseInput& ids) {
  CrossEntropyArguments a{};
  a.x = x.data();
  a.ids = ids.as<char>();
  a.rows = c.in[0]->sizes[0];
  a.n = c.in[0]->sizes[1];
  const Targets t(c.attrs, a.n);
  a.ignored = t.ignored;
  a.hit = t.hit;
  a.miss = t.miss;
  a.fault = device_fault();
  a.op = fault_op(c);
  return a;
}

}  // namespace

void cross_entropy_cuda(OpCall& c) {
  const DType dtype = c.in[0]->dtype;
  const RowInput x(c.in[0], dtype);
  const DenseInput ids(c.in[1], kInt64);
  CrossEntropyArguments a = arguments(c, x, ids);
  const Tensor losses = raw_empty({a.rows}, compute_type(dtype), c.in[0]->device);
  a.max = c.out[1].impl()->data();
  a.sum = c.out[2].impl()->data();
  a.to = losses.impl()->data();
  run_rows(rows_kernel, a.rows, a.n, dtype, dtype, a.miss != 0, a);
  run_kernel(mean_kernel, one_block(dtype, dtype), {1},
             MeanArguments{a.to, a.ids, nullptr, c.out[0].impl()->data(), a.rows, a.ignored});
}

void cross_entropy_backward_cuda(OpCall& c) {
  const DType dtype = c.in[0]->dtype, compute = compute_type(dtype);
  const DType g_dtype = compute_type(c.in[4]->dtype) == compute ? c.in[4]->dtype : compute;
  const RowInput x(c.in[0], dtype);
  const DenseInput ids(c.in[1], kInt64), max(c.in[2], compute), sum(c.in[3], compute),
      g(c.in[4], g_dtype);
  CrossEntropyArguments a = arguments(c, x, ids);
  const Tensor scale = raw_empty({}, compute, c.in[0]->device);
  run_kernel(scale_kernel, one_block(dtype, g_dtype), {1},
             MeanArguments{nullptr, a.ids, g.as<char>(), scale.impl()->data(), a.rows, a.ignored});
  a.max = const_cast<char*>(max.as<char>());
  a.sum = const_cast<char*>(sum.as<char>());
  a.to = c.out[0].impl()->data();
  a.scale = scale.impl()->data();
  run_rows(backward_kernel, a.rows, a.n, dtype, dtype, 0, a);
}

}  // namespace brrr
