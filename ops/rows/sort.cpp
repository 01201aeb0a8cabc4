// Order along a dim: rows give positions, values are gathered by them, which is the gradient too.
#include <array>

#include "core/backend.h"
#include "core/call.h"
#include "core/check.h"
#include "ops/library_ops.h"
#include "ops/rows/order.h"
#include "ops/rows/order_kernels.h"
#include "ops/kinds/row_kernel.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

// --- kernels: rows of n elements -----------------------------------------------------------------

constexpr int64_t kRadixFrom = 256;  // Elements from which counting digits is the faster way.

/// Sorts by the keys, digit by digit from the lowest; entries of equal keys must lie in order of
/// position, and stay so. `other` has room for n entries. Returns where the result is.
NarrowEntry* radix_sort(NarrowEntry* e, NarrowEntry* other, int64_t n) {
  std::array<std::array<uint32_t, 256>, 4> count{};
  for (int64_t i = 0; i < n; ++i) {
    for (size_t d = 0; d < 4; ++d) ++count[d][e[i].word >> (32 + 8 * d) & 255];
  }
  for (size_t d = 0; d < 4; ++d) {
    const auto digit = [=](const NarrowEntry& x) { return x.word >> (32 + 8 * d) & 255; };
    if (count[d][digit(e[0])] == n) continue;
    uint32_t before = 0;
    for (uint32_t& c : count[d]) before += std::exchange(c, before);
    for (int64_t i = 0; i < n; ++i) other[count[d][digit(e[i])]++] = e[i];
    std::swap(e, other);
  }
  return e;
}

struct Problem {
  const void* x;
  void* scratch;  // An entry for each element.
  void* spare;    // The same once more, or null where no digits are counted.
  int64_t* out;   // [rows, k]
  int64_t n, k;
  bool descending;
};

template <class E, class T> void order_row(const Problem& p, int64_t row) {
  const T* x = static_cast<const T*>(p.x) + row * p.n;
  E* e = static_cast<E*>(p.scratch) + row * p.n;
  int64_t* out = p.out + row * p.k;
  for (int64_t i = 0; i < p.n; ++i) {
    const auto key = order_key(x[i]);
    e[i] = E(p.descending ? ~key : key, i);
  }
  if constexpr (std::is_same_v<E, NarrowEntry>) {
    if (p.spare) {
      e = radix_sort(e, static_cast<E*>(p.spare) + row * p.n, p.n);
      for (int64_t i = 0; i < p.k; ++i) out[i] = e[i].at();
      return;
    }
  }
  smallest_first(e, p.n, p.k);
  for (int64_t i = 0; i < p.k; ++i) out[i] = e[i].at();
}

// A few of many are found faster than all are sorted.
bool sorts_by_digits(int64_t n, int64_t k) {
  return n >= kRadixFrom && k > n / 16;
}

template <class E, class T> void order_rows(OpCall& c, const TensorImpl& x, int64_t n) {
  const TensorImpl& y = *c.out[0].impl();
  const int64_t rows = x.numel / n, k = y.numel / rows;
  const bool digits = std::is_same_v<E, NarrowEntry> && sorts_by_digits(n, k);
  const int64_t bytes = x.numel * static_cast<int64_t>(sizeof(E));
  const Tensor scratch = raw_empty({digits ? 2 * bytes : bytes}, kUInt8, x.device);
  char* room = scratch.impl()->data();
  const Problem p{
      x.data(), room, digits ? room + bytes : nullptr,         reinterpret_cast<int64_t*>(y.data()),
      n,        k,    c.attrs.as<OrderAttrs>().descending != 0};
  parallel_for(rows, std::max<int64_t>(1, kRowGrain / (8 * n)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) order_row<E, T>(p, r);
  });
}

void order_cpu(OpCall& c) {
  const TensorImpl* x = c.in[0];
  if (c.out[0].impl()->numel == 0) return;
  const DType compute = compute_type(x->dtype);
  Tensor dense;
  if (!x->contiguous() || x->dtype != compute) {
    dense = raw_empty(x->size_list(), compute, x->device);
    copy_now(*dense.impl(), *x);
    x = dense.impl();
  }
  const int64_t n = x->ndim ? x->sizes[x->ndim - 1] : 1;
  const bool narrow = n <= int64_t{1} << 32;
  switch (compute) {
    case kFloat32:
      return narrow ? order_rows<NarrowEntry, float>(c, *x, n)
                    : order_rows<WideEntry, float>(c, *x, n);
    case kFloat64:
      return order_rows<WideEntry, double>(c, *x, n);
    case kInt64:
      return order_rows<WideEntry, int64_t>(c, *x, n);
    default:
      return narrow ? order_rows<NarrowEntry, int32_t>(c, *x, n)
                    : order_rows<WideEntry, int32_t>(c, *x, n);
  }
}

// Entries, twice where they are sorted by digits, and the dense copy.
int64_t order_scratch(const OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return 0;
  const int64_t n = x.ndim ? x.sizes[x.ndim - 1] : 1, k = y.numel / (x.numel / n);
  const bool narrow = n <= int64_t{1} << 32 && itemsize(compute_type(x.dtype)) == 4;
  const int64_t runs = narrow && sorts_by_digits(n, k) ? 2 : 1;
  const size_t entry = narrow ? sizeof(NarrowEntry) : sizeof(WideEntry);
  return packed_bytes(c) + scratch_for(runs * x.numel, static_cast<int64_t>(entry));
}

// --- rows: over the last dim ---------------------------------------------------------------------

void order_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  OutMeta& m = c.meta[0];
  m.dtype = kInt64;
  m.device = x.device;
  m.sizes = x.size_list();
  const int64_t most = c.attrs.as<OrderAttrs>().most;
  if (most >= 0 && x.ndim > 0) m.sizes[x.ndim - 1] = most;
}

const OpDef argsort_row{
    "argsort",
    "positions in the order of the elements along a dim",
    {.infer = order_infer, .kernel = {{order_cpu}, {order_cuda}}, .scratch = order_scratch}};
const OpDef topk_row{
    "topk",
    "the largest or smallest k elements along a dim, in order",
    {.infer = order_infer, .kernel = {{order_cpu}, {order_cuda}}, .scratch = order_scratch}};

int dim_arg(const char* op, const Tensor& x, int64_t dim) {
  BRRR_CHECK(x.defined(), "{}: the tensor is undefined; assign one first", op);
  return wrap_dim(op, dim, static_cast<int>(x.dim()));
}

Tensor positions(const OpDef& op, const Tensor& x, int dim, OrderAttrs attrs) {
  const bool last = dim + 1 >= x.dim();
  const Tensor from = last ? x : transpose(x, dim, -1);
  Tensor at = call(op, {from}, attrs);
  return last ? at : transpose(at, dim, -1).contiguous();
}

}  // namespace

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
  const int64_t n = x.dim() ? x.size(d) : 1;
  BRRR_CHECK(k >= (x.dim() ? 0 : 1) && k <= n,
             "topk: k is {}, but dim {} of {} has {} elements; give at most that many", k, d,
             describe(x.impl()), n);
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
