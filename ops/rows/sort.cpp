// Sorting along a dim: the rows return positions; gather() takes the values and has the gradient.
#include <algorithm>
#include <array>

#include "core/backend.h"
#include "core/call.h"
#include "core/check.h"
#include "ops/library_ops.h"
#include "ops/rows/library_kernels.h"
#include "ops/rows/order.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

namespace {

// --- kernels: rows of n elements -----------------------------------------------------------------

// Rows shorter than this have 32-bit positions and counts.
constexpr int64_t kNarrow = int64_t{1} << 32;
constexpr int64_t kRadixFrom = 256;  // Elements from which a radix sort is faster.

/// A radix sort by key, from the lowest digit. It is stable: entries of equal keys must be in order
/// of position, and stay so. `other` has room for n entries. Returns where the result is.
Narrow* radix_sort(Narrow* e, Narrow* other, int64_t n) {
  std::array<std::array<uint32_t, 256>, 4> count{};
  for (int64_t i = 0; i < n; ++i) {
    for (size_t d = 0; d < 4; ++d) ++count[d][e[i].word >> (32 + 8 * d) & 255];
  }
  for (size_t d = 0; d < 4; ++d) {
    const auto digit = [=](const Narrow& x) { return x.word >> (32 + 8 * d) & 255; };
    if (count[d][digit(e[0])] == n) continue;
    uint32_t before = 0;
    for (uint32_t& c : count[d]) before += std::exchange(c, before);
    for (int64_t i = 0; i < n; ++i) other[count[d][digit(e[i])]++] = e[i];
    std::swap(e, other);
  }
  return e;
}

// Selecting a few of many is faster than sorting all.
bool uses_radix_sort(int64_t n, int64_t k) { return n >= kRadixFrom && k > n / 16; }

// Moves the k smallest of n entries to the front, in order.
template <class E> void smallest_first(E* e, int64_t n, int64_t k) {
  const auto less = [](E a, E b) { return before(a, b); };
  if (k < n && k <= n / 16) return std::partial_sort(e, e + k, e + n, less);
  if (k < n) std::nth_element(e, e + k - 1, e + n, less);
  std::sort(e, e + k, less);
}

int64_t row_length(const TensorImpl& x) { return x.ndim ? x.sizes[x.ndim - 1] : 1; }

// `x` is dense, [rows, n].
template <class E, class T> void order_rows(OpCall& c, const T* x) {
  const TensorImpl& y = *c.out[0].impl();
  const int64_t n = row_length(*c.in[0]), all = c.in[0]->numel, k = y.numel / (all / n);
  const bool radix = std::is_same_v<E, Narrow> && uses_radix_sort(n, k),
             descending = c.attrs.as<OrderAttrs>().descending != 0;
  const int64_t bytes = all * static_cast<int64_t>(sizeof(E));
  const Tensor scratch = raw_empty({radix ? 2 * bytes : bytes}, kUInt8, kCPU);
  E* const entries = reinterpret_cast<E*>(scratch.impl()->data());
  auto* const out = reinterpret_cast<int64_t*>(y.data());
  parallel_for(all / n, std::max<int64_t>(1, kRowGrain / (8 * n)), [=](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      E* e = entries + row * n;
      for (int64_t i = 0; i < n; ++i) {
        const auto key = order_key(x[row * n + i]);
        set_entry(e[i], descending ? ~key : key, i);
      }
      if constexpr (std::is_same_v<E, Narrow>) {
        if (radix) e = radix_sort(e, e + all, n);
      }
      if (!radix) smallest_first(e, n, k);
      for (int64_t i = 0; i < k; ++i) out[row * k + i] = position_of(e[i]);
    }
  });
}

template <class T> void order_dense(OpCall& c) {
  const DenseInput x(c.in[0], DTypeOf<T>::value);
  if constexpr (sizeof(T) == 4) {
    if (row_length(*c.in[0]) < kNarrow) return order_rows<Narrow>(c, x.as<T>());
  }
  order_rows<Wide>(c, x.as<T>());
}

// Entries, two buffers of them for a radix sort, and the dense copy.
int64_t order_scratch(const OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return 0;
  const int64_t n = row_length(x), k = y.numel / (x.numel / n);
  const DType compute = compute_type(x.dtype);
  const bool narrow = n < kNarrow && itemsize(compute) == 4;
  const int64_t copies = narrow && uses_radix_sort(n, k) ? 2 : 1;
  const size_t entry = narrow ? sizeof(Narrow) : sizeof(Wide);
  return DenseInput::bytes(x, compute) + scratch_for(copies * x.numel, static_cast<int64_t>(entry));
}

// --- rows: over the last dim ---------------------------------------------------------------------

void order_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  set_meta(c, 0, kInt64, x.size_list());
  const int64_t most = c.attrs.as<OrderAttrs>().most;
  if (most >= 0 && x.ndim > 0) c.meta[0].sizes[x.ndim - 1] = most;
}

constexpr OpSpec kOrder{
    .infer = order_infer, .kernel = {{order_cpu}, {order_cuda}}, .scratch = order_scratch};
const OpDef argsort_row{"argsort", "positions that sort the elements along a dim", kOrder};
const OpDef topk_row{"topk", "the largest or smallest k elements along a dim, in order", kOrder};

Tensor positions(const OpDef& op, const Tensor& x, int dim, OrderAttrs attrs) {
  return over_dim(x, dim, [&](const Tensor& rows) { return call(op, {rows}, attrs); });
}

}  // namespace

void order_cpu(OpCall& c) {
  if (c.out[0].impl()->numel == 0) return;
  constexpr void (*kernels[])(OpCall&) = {order_dense<float>, order_dense<double>,
                                          order_dense<int64_t>, order_dense<int32_t>};
  kernels[compute_index(compute_type(c.in[0]->dtype))](c);
}

Tensor argsort(const Tensor& x, int64_t dim, bool descending) {
  return positions(argsort_row, x, dim_arg("argsort", x, dim), {descending});
}

std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim, bool descending) {
  const int d = dim_arg("sort", x, dim);
  const Tensor at = positions(argsort_row, x, d, {descending});
  return {gather(x, d, at), at};
}

std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  const int d = dim_arg("topk", x, dim);
  const int64_t n = x.dim() ? x.size(d) : 1, least = x.dim() ? 0 : 1;
  BRRR_CHECK(k >= least && k <= n, "topk: k is {}, but takes {} to {} along dim {} of {}", k, least,
             n, d, describe(x));
  const Tensor at = positions(topk_row, x, d, {largest, k});
  return {gather(x, d, at), at};
}

Tensor Tensor::argsort(int64_t dim, bool descending) const {
  return brrr::argsort(*this, dim, descending);
}
std::pair<Tensor, Tensor> Tensor::sort(int64_t dim, bool descending) const {
  return brrr::sort(*this, dim, descending);
}
std::pair<Tensor, Tensor> Tensor::topk(int64_t k, int64_t dim, bool largest) const {
  return brrr::topk(*this, k, dim, largest);
}

}  // namespace brrr
