// Softmax and its logarithm on a GPU: a row is read once and written once.
#include "ops/nn_kernels.h"
#include "ops/row_device.h"

namespace brrr {

namespace {

// Softmax reads x = a; the gradients read y = a and g = b.
BRRR_DEVICE_STRUCT(SoftmaxArguments, {
  const char* a;
  const char* b;
  char* to;
  long rows;
  long n;
});

constexpr auto softmax_text = row_text(R"(
BLOCK_KERNEL(softmax, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand x((const T*)p.a + row * p.n, n);
  const MaxSum s = max_and_sum<true>(x, n);
  const TCV scale = (TC)1 / s.sum;
  T* y = (T*)p.to + row * p.n;
  for_groups(n, [&](long i, int k) {
    Group e = x.at(i, k);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (kHeld == 0) e.v[u] = exp(e.v[u] - s.max);
      e.v[u] = e.v[u] * scale;
    }
    store_group(y + i, e);
  });
}
)");
constexpr RowKernel softmax_kernel =
    row_kernel("softmax", SoftmaxArgumentsText, softmax_text.data());

constexpr auto log_softmax_text = row_text(R"(
BLOCK_KERNEL(log_softmax, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand x((const T*)p.a + row * p.n, n);
  const MaxSum s = max_and_sum<false>(x, n);
  const TCV log_sum = log(s.sum);
  T* y = (T*)p.to + row * p.n;
  for_groups(n, [&](long i, int k) {
    Group d = x.at(i, k);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] - s.max - log_sum;
    store_group(y + i, d);
  });
}
)");
constexpr RowKernel log_softmax_kernel =
    row_kernel("log_softmax", SoftmaxArgumentsText, log_softmax_text.data());

constexpr auto softmax_backward_text = row_text(R"(
BLOCK_KERNEL(softmax_backward, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  const Operand y((const T*)p.a + row * p.n, n), g((const T*)p.b + row * p.n, n);
  const TCV dot = sum_groups(n, [&](long i, int k) {
    const Group a = g.at(i, k);
    Group d = y.at(i, k);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = a.v[u] * d.v[u];
    return d;
  });
  T* dx = (T*)p.to + row * p.n;
  for_groups(n, [&](long i, int k) {
    const Group a = g.at(i, k);
    Group d = y.at(i, k);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] * (a.v[u] - dot);
    store_group(dx + i, d);
  });
}
)");
constexpr RowKernel softmax_backward_kernel =
    row_kernel("softmax_backward", SoftmaxArgumentsText, softmax_backward_text.data());

constexpr auto log_softmax_backward_text = row_text(R"(
BLOCK_KERNEL(log_softmax_backward, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  const Operand y((const T*)p.a + row * p.n, n), g((const T*)p.b + row * p.n, n);
  const TCV total = sum_groups(n, [&](long i, int k) { return g.at(i, k); });
  T* dx = (T*)p.to + row * p.n;
  for_groups(n, [&](long i, int k) {
    const Group b = y.at(i, k);
    Group d = g.at(i, k);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] - exp(b.v[u]) * total;
    store_group(dx + i, d);
  });
}
)");
constexpr RowKernel log_softmax_backward_kernel =
    row_kernel("log_softmax_backward", SoftmaxArgumentsText, log_softmax_backward_text.data());

void run_last(OpCall& c, const RowKernel& k) {
  const TensorImpl &first = *c.in[0], *second = c.n_in > 1 ? c.in[1] : nullptr;
  if (first.numel == 0) return;
  const DType dtype = common_dtype(first, second);
  const RowInput a(&first, dtype), b(second, dtype);
  DenseOutput to(c.out[0], dtype);
  const int64_t n = first.ndim ? first.sizes[first.ndim - 1] : 1, rows = first.numel / n;
  run_rows(k, rows, n, dtype, dtype, 0,
           SoftmaxArguments{a.data(), b.data(), to.as<char>(), rows, n});
  to.finish();
}

}  // namespace

void softmax_cuda(OpCall& c) {
  run_last(c, softmax_kernel);
}
void softmax_backward_cuda(OpCall& c) {
  run_last(c, softmax_backward_kernel);
}
void log_softmax_cuda(OpCall& c) {
  run_last(c, log_softmax_kernel);
}
void log_softmax_backward_cuda(OpCall& c) {
  run_last(c, log_softmax_backward_kernel);
}

}  // namespace brrr
