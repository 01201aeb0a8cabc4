// Copies: clone, contiguous, dtype conversion, copy_ and fill_ are one row, the identity.
#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "core/check.h"
#include "ops/pointwise.h"

namespace brrr {

namespace {

const NumberOp copy_row{"copy",
                        "the same values, in new memory or another dtype",
                        {},
                        [](auto x) { return x; },
                        [](auto, auto, auto g) { return g; }};

constexpr int64_t kGrainBytes = 1 << 17, kLongestRow = 1 << 12;

// Rows of bytes that are dense on both sides, walked in the order of the dims.
struct Runs {
  int ndim = 0;  // Outer dims only.
  int64_t bytes, rows = 1;
  int64_t size[kMaxDims], from[kMaxDims], to[kMaxDims];  // Strides in bytes.
};

// False unless the two have one dtype and shape and the innermost dim is dense in both.
bool find_runs(const TensorImpl& dst, const TensorImpl& src, Runs& r) {
  if (dst.dtype != src.dtype || !dst.same_shape(src) || src.numel == 0) return false;
  const auto item = static_cast<int64_t>(itemsize(src.dtype));
  int n = 0;
  for (int d = 0; d < src.ndim; ++d) {
    if (src.sizes[d] == 1) continue;
    const int64_t from = src.strides[d] * item, to = dst.strides[d] * item;
    const bool merge =
        n > 0 && r.from[n - 1] == from * src.sizes[d] && r.to[n - 1] == to * src.sizes[d];
    if (!merge) r.size[n++] = 1;
    r.size[n - 1] *= src.sizes[d];
    r.from[n - 1] = from;
    r.to[n - 1] = to;
  }
  if (n == 0 || r.from[n - 1] != item || r.to[n - 1] != item) return false;
  r.ndim = n - 1;
  r.bytes = r.size[n - 1] * item;
  for (int d = 0; d < r.ndim; ++d) r.rows *= r.size[d];
  return true;
}

void copy_rows(const Runs& r, char* to, const char* from, int64_t begin, int64_t end) {
  int64_t index[kMaxDims], rest = begin;
  for (int d = r.ndim - 1; d >= 0; --d) {
    index[d] = rest % r.size[d];
    rest /= r.size[d];
    to += index[d] * r.to[d];
    from += index[d] * r.from[d];
  }
  constexpr int64_t chunk = 64;  // A constant size needs no call.
  for (int64_t row = begin; row < end; ++row) {
    int64_t at = 0;
    for (; r.bytes < 8 * chunk && at + chunk <= r.bytes; at += chunk) {
      std::memcpy(to + at, from + at, chunk);
    }
    if (at < r.bytes) std::memcpy(to + at, from + at, static_cast<size_t>(r.bytes - at));
    for (int d = r.ndim - 1; d >= 0; --d) {
      to += r.to[d];
      from += r.from[d];
      if (++index[d] < r.size[d]) break;
      to -= r.size[d] * r.to[d];
      from -= r.size[d] * r.from[d];
      index[d] = 0;
    }
  }
}

}  // namespace

void copy_now(TensorImpl& dst, const TensorImpl& src) {
  // The general driver takes a dozen nanoseconds a row: too much where rows are short. It shares
  // long ones among threads.
  if (Runs r; find_runs(dst, src, r) && r.bytes <= kLongestRow) {
    char* to = dst.data();
    const char* from = src.data();
    return parallel_for(r.rows, std::max<int64_t>(1, kGrainBytes / r.bytes),
                        [&](int64_t b, int64_t e) { copy_rows(r, to, from, b, e); });
  }
  auto to = Ref<TensorImpl>::share(&dst);
  TensorImpl* in[] = {const_cast<TensorImpl*>(&src)};
  OpCall c(copy_row, in, 1);
  c.into = true;
  c.out[0] = Tensor(to);
  pointwise_run(c);
}

Tensor Tensor::clone() const {
  return PointwiseCall(copy_row).add(*this).run();
}

Tensor Tensor::contiguous() const {
  return is_contiguous() ? *this : clone();
}

Tensor Tensor::to(DType t) const {
  if (dtype() == t) return *this;
  return PointwiseCall(copy_row).add(*this).dtype(t).run();
}

const Tensor& Tensor::copy_(const Tensor& src) const {
  BRRR_CHECK(defined() && src.defined(), "copy_: an undefined tensor");
  PointwiseCall(copy_row).add(src).dtype(dtype()).run_into({*this});
  return *this;
}

const Tensor& Tensor::fill_(Scalar v) const {
  PointwiseCall(copy_row).add(v).dtype(dtype()).run_into({*this});
  return *this;
}

const Tensor& Tensor::zero_() const {
  return fill_(0);
}

}  // namespace brrr
