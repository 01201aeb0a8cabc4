// Joining tensors along a dim, on a GPU: one kernel for all that lie dense in the result's dtype.
#include <algorithm>

#include "core/device_kernel.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

// In units: `begin` of each part within a row of the result, and where the last one ends. Parts
// without an address are somebody else's.
BRRR_DEVICE_STRUCT(CatArguments, {
  char* to;
  long units;
  long row;
  long parts;
  const char* from[128];
  long begin[129];
});

constexpr DeviceKernel cat_kernel{"cat", CatArgumentsText, 256, R"(
KERNEL(cat, CatArguments, 256) {
  typedef Pack<T, N> Unit;
  const long at = (long)blockIdx.x * 256 + threadIdx.x;
  if (at >= p.units) return;
  const long row = at / p.row, i = at % p.row;
  long part = 0, end = p.parts;
  while (end - part > 1) {
    const long middle = (part + end) / 2;
    if (p.begin[middle] <= i) part = middle; else end = middle;
  }
  if (!p.from[part]) return;
  const long begin = p.begin[part], length = p.begin[part + 1] - begin;
  ((Unit*)p.to)[at] = ((const Unit*)p.from[part])[row * length + i - begin];
}
)"};

// What a thread moves: the largest power of two, up to 16, that divides all addresses and lengths.
struct Unit {
  int64_t bytes;
  Variant variant;
};
Unit unit_of(uint64_t bits) {
  switch (const uint64_t bytes = std::min<uint64_t>(bits & -bits, 16)) {
    case 16:
      return {16, {.t = kInt64, .n = 2}};
    case 8:
      return {8, {.t = kInt64, .n = 1}};
    case 4:
      return {4, {.t = kInt32, .n = 1}};
    case 2:
      return {2, {.t = kBFloat16, .n = 1}};
    default:
      return {static_cast<int64_t>(bytes), {.t = kUInt8, .n = 1}};
  }
}

}  // namespace

void cat_cuda(OpCall& c) {
  TensorImpl& out = *c.out[0].impl();
  if (out.numel == 0) return;
  const int dim = dim_of(c.attrs);
  const auto step = lines_along(out, dim).inner * static_cast<int64_t>(itemsize(out.dtype));
  CatArguments a{};
  a.to = out.data();
  uint64_t bits = reinterpret_cast<uint64_t>(a.to) | 16;
  bool any = false;
  int64_t at = 0;
  for (int i = 0; i < c.n_in; ++i) {
    const TensorImpl& t = *c.in[i];
    a.begin[i] = at * step;
    bits |= static_cast<uint64_t>(a.begin[i]);
    if (t.dtype == out.dtype && t.contiguous()) {
      a.from[i] = t.data();
      if (t.numel) bits |= reinterpret_cast<uint64_t>(a.from[i]);
      any |= t.numel > 0;
    } else {
      copy_into_part(out, t, dim, at);
    }
    at += t.sizes[dim];
  }
  if (!any) return;
  a.begin[c.n_in] = at * step;
  const Unit unit = unit_of(bits | static_cast<uint64_t>(at * step));
  for (int i = 0; i <= c.n_in; ++i) a.begin[i] /= unit.bytes;
  a.parts = c.n_in;
  a.row = a.begin[c.n_in];
  a.units = out.numel * static_cast<int64_t>(itemsize(out.dtype)) / unit.bytes;
  run_kernel(cat_kernel, unit.variant, {blocks_for(a.units)}, a);
}

}  // namespace brrr
