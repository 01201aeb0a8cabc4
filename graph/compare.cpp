#include "graph/compare.h"

#include <algorithm>
#include <cstring>

#include "core/context.h"

namespace brrr {

// For a floating-point format stored in a U: without the sign, bits above infinity's are a NaN.
template <class U> static void unify(U infinity, void* elements, size_t n) {
  const U sign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
  auto* at = static_cast<char*>(elements);
  for (size_t i = 0; i < n; ++i, at += sizeof(U)) {
    U x;
    std::memcpy(&x, at, sizeof x);
    if ((x & static_cast<U>(~sign)) > infinity) std::memset(at, 0xff, sizeof x);
  }
}

void graph::unify_nans(DType t, void* elements, size_t n) {
  if (t == kFloat64) unify<uint64_t>(0x7ff0000000000000u, elements, n);
  if (t == kFloat32) unify<uint32_t>(0x7f800000u, elements, n);
  if (t == kBFloat16) unify<uint16_t>(0x7f80u, elements, n);
  if (t == kFloat16) unify<uint16_t>(0x7c00u, elements, n);
}

static Tensor dense_on_host(const Tensor& t) {
  check_host_access("comparable_bytes", t.impl());
  const NoGradGuard guard;
  return t.detach().contiguous().to(kCPU);
}

std::vector<char> comparable_bytes(const Tensor& t) {
  if (!t.defined()) return {};
  const Tensor host = dense_on_host(t);
  const auto n = static_cast<size_t>(host.numel());
  std::vector<char> bytes(n * itemsize(host.dtype()));
  if (n) std::memcpy(bytes.data(), host.impl()->data(), bytes.size());
  graph::unify_nans(host.dtype(), bytes.data(), n);
  return bytes;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return false;
  const Tensor x = dense_on_host(a), y = dense_on_host(b);
  const size_t bytes = static_cast<size_t>(x.numel()) * itemsize(x.dtype());
  const bool equal = !bytes || std::memcmp(x.impl()->data(), y.impl()->data(), bytes) == 0;
  return equal || comparable_bytes(x) == comparable_bytes(y);
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) { return same_bits(x, y); });
}

}  // namespace brrr
