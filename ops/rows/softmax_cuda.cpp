// Softmax and its logarithm on a GPU: a row is read once and written once.
#include "ops/rows/nn_kernels.h"
#include "ops/kinds/row_device.h"

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
  Operand x(p, p.a, n);
  const MaxSum s = max_and_sum<true>(x, n);
  const TCV scale = (TC)1 / s.sum;
  const auto scaled = [&](long, Group e) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (kHeld == 0) e.v[u] = exp(e.v[u] - s.max);
      e.v[u] = e.v[u] * scale;
    }
    return e;
  };
  map_groups(n, (T*)p.to + row * p.n, scaled, x);
}
)");
constexpr RowKernel softmax_kernel =
    row_kernel("softmax", SoftmaxArgumentsText, softmax_text.data());

constexpr auto log_softmax_text = row_text(R"(
BLOCK_KERNEL(log_softmax, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand x(p, p.a, n);
  const MaxSum s = max_and_sum<false>(x, n);
  const TCV log_sum = log(s.sum);
  const auto less = [&](long, Group d) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] - s.max - log_sum;
    return d;
  };
  map_groups(n, (T*)p.to + row * p.n, less, x);
}
)");
constexpr RowKernel log_softmax_kernel =
    row_kernel("log_softmax", SoftmaxArgumentsText, log_softmax_text.data());

constexpr auto softmax_backward_text = row_text(R"(
BLOCK_KERNEL(softmax_backward, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand y(p, p.a, n), g(p, p.b, n);
  const auto product = [&](long, Group d, const Group& a) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = a.v[u] * d.v[u];
    return d;
  };
  const TCV dot = sum_groups(n, product, y, g);
  const auto dx = [&](long, Group d, const Group& a) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] * (a.v[u] - dot);
    return d;
  };
  map_groups(n, (T*)p.to + row * p.n, dx, y, g);
}
)");
constexpr RowKernel softmax_backward_kernel =
    row_kernel("softmax_backward", SoftmaxArgumentsText, softmax_backward_text.data());

constexpr auto log_softmax_backward_text = row_text(R"(
BLOCK_KERNEL(log_softmax_backward, SoftmaxArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand y(p, p.a, n), g(p, p.b, n);
  const TCV total = sum_groups(n, [](long, const Group& d) { return d; }, g);
  const auto dx = [&](long, Group d, const Group& b) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] - exp(b.v[u]) * total;
    return d;
  };
  map_groups(n, (T*)p.to + row * p.n, dx, g, y);
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
