// Order along a dim on a GPU: keys are made, then sorted.
#include "core/device_kernel.h"
#include "ops/rows/order.h"
#include "ops/rows/order_cuda.h"
#include "ops/rows/order_kernels.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

namespace {

BRRR_DEVICE_STRUCT(OrderArguments, {
  const char* x;
  char* to;
  long n;
  long columns;
});

// N: 1 for wide entries, plus 2 for the greatest first.
constexpr auto kKeysText = join_text(kEntryText, OrderKeyText, R"(
KERNEL(order_entries, OrderArguments, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.n) return;
  const auto key = order_key(get((const T*)p.x + i)[0]);
  set_entry(((EntryOf<(N & 1) != 0>::type*)p.to)[i], N & 2 ? ~key : key, i % p.columns);
}
)");
constexpr DeviceKernel keys_kernel{"order_entries", OrderArgumentsText, 256, kKeysText.data()};

}  // namespace

void order_cuda(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DenseInput dense(&x, x.dtype);
  const int64_t n = x.ndim ? x.sizes[x.ndim - 1] : 1, rows = x.numel / n;
  const bool wide = itemsize(compute_type(x.dtype)) == 8 || n > int64_t{1} << 32;
  const EntryRows entries(wide, rows, n, x.device);
  const OrderArguments a{dense.as<char>(), entries.data(), x.numel, n};
  run_kernel(keys_kernel,
             {.t = x.dtype, .n = wide + 2 * (c.attrs.as<OrderAttrs>().descending != 0)},
             {blocks_for(x.numel)}, a);
  sort_entries(entries, y.numel / rows, y.data());
}

}  // namespace brrr
