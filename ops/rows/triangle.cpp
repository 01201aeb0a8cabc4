// The lower or upper triangle of matrices, in the last two dims.
#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "core/call.h"
#include "core/check.h"
#include "ops/rows/library_kernels.h"
#include "ops/library_ops.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr int64_t kGrainBytes = 1 << 17;  // Bytes worth a thread.

void triangle_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  BRRR_CHECK(x.ndim >= 2, "{}: takes matrices [.., rows, cols], got {}; unsqueeze a dim",
             c.op->name, describe(&x));
  c.meta[0].dtype = x.dtype;
  c.meta[0].device = x.device;
  c.meta[0].sizes = x.size_list();
}

// Row i keeps columns [0, i + diagonal] or [i + diagonal, cols). What is left out is never read as
// a number: a NaN there gives 0.
template <bool kLower> void triangle_cpu(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  TensorImpl& y = *c.out[0].impl();
  if (y.numel == 0) return;
  const int64_t rows = x.sizes[x.ndim - 2], cols = x.sizes[x.ndim - 1];
  // Clamped, so that no sum with a row's number overflows.
  const int64_t diagonal = std::clamp(c.attrs.v[0], -rows, cols);
  const auto item = static_cast<int64_t>(itemsize(x.dtype));
  const bool dense = x.contiguous();
  if (!dense) copy_now(y, x);
  const char* from = x.data();
  char* to = y.data();
  parallel_for(x.numel / cols, std::max<int64_t>(1, kGrainBytes / (cols * item)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t r = begin; r < end; ++r) {
                   const int64_t edge = r % rows + diagonal + (kLower ? 1 : 0);
                   const int64_t split = std::clamp<int64_t>(edge, 0, cols) * item;
                   const int64_t row = r * cols * item, rest = cols * item - split;
                   const auto at = static_cast<size_t>(kLower ? 0 : split);
                   const auto kept = static_cast<size_t>(kLower ? split : rest);
                   const size_t zero = kLower ? kept : 0;
                   if (dense) std::memcpy(to + row + at, from + row + at, kept);
                   std::memset(to + row + zero, 0, static_cast<size_t>(cols * item) - kept);
                 }
               });
}

Tensor triangle(const OpDef& op, const Tensor& x, int64_t diagonal) {
  BRRR_CHECK(x.defined(), "{}: the tensor is undefined; assign one first", op.name);
  return call(op, {x}, diagonal);
}

const OpDef tril_row{"tril",
                     "elements up to a diagonal, else 0",
                     {.infer = triangle_infer,
                      .kernel = {{triangle_cpu<true>}, {tril_cuda}},
                      .vjp = [](VjpCall& v) { v.gin[0] = tril(v.gout[0], v.attrs().v[0]); }}};
const OpDef triu_row{"triu",
                     "elements from a diagonal on, else 0",
                     {.infer = triangle_infer,
                      .kernel = {{triangle_cpu<false>}, {triu_cuda}},
                      .vjp = [](VjpCall& v) { v.gin[0] = triu(v.gout[0], v.attrs().v[0]); }}};

}  // namespace

Tensor tril(const Tensor& x, int64_t diagonal) {
  return triangle(tril_row, x, diagonal);
}
Tensor triu(const Tensor& x, int64_t diagonal) {
  return triangle(triu_row, x, diagonal);
}
Tensor Tensor::tril(int64_t diagonal) const {
  return brrr::tril(*this, diagonal);
}
Tensor Tensor::triu(int64_t diagonal) const {
  return brrr::triu(*this, diagonal);
}

}  // namespace brrr
