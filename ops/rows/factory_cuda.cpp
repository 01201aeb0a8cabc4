// Tensors from nothing, on a GPU: the same numbers as on the CPU.
#include "ops/rows/factory_kernels.h"

#include <algorithm>
#include <cstring>

#include "core/device_kernel.h"
#include "ops/vocabulary/convert.h"

namespace brrr {

namespace {

BRRR_DEVICE_STRUCT(FillArguments, {
  char* to;
  long bytes;
  long pattern;
});

// 16 bytes a thread; memory of its own begins at a multiple of 16.
constexpr DeviceKernel fill_kernel{"fill", FillArgumentsText, 256, R"(
KERNEL(fill, FillArguments, 256) {
  const long at = ((long)blockIdx.x * 256 + threadIdx.x) * 16;
  if (at + 16 <= p.bytes) {
    const Pack<long, 2> v = {{p.pattern, p.pattern}};
    *(Pack<long, 2>*)(p.to + at) = v;
    return;
  }
  for (long i = at; i < p.bytes; ++i) p.to[i] = (char)(p.pattern >> 8 * (i % 8));
}
)"};

BRRR_DEVICE_STRUCT(SequenceArguments, {
  char* to;
  long n;
  long first;
  long step;
  double start;
  double end;
  double by;
});

constexpr DeviceKernel arange_kernel{"arange", SequenceArgumentsText, 256, R"(
BRRR_VX void element(long* to, long i, const SequenceArguments& p) {
  *to = (long)((unsigned long)p.first + (unsigned long)i * (unsigned long)p.step);
}
BRRR_VX void element(float* to, long i, const SequenceArguments& p) {
  *to = (float)(p.start + (double)i * p.by);
}
KERNEL(arange, SequenceArguments, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i < p.n) element((T*)p.to + i, i, p);
}
)"};

constexpr DeviceKernel linspace_kernel{"linspace", SequenceArgumentsText, 256, R"(
KERNEL(linspace, SequenceArguments, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.n) return;
  const double x = i < (p.n + 1) / 2 ? p.start + (double)i * p.by
                                     : p.end - (double)(p.n - 1 - i) * p.by;
  ((float*)p.to)[i] = (float)x;
}
)"};

// `step` columns.
constexpr DeviceKernel eye_kernel{"eye", SequenceArgumentsText, 256, R"(
KERNEL(eye, SequenceArguments, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i < p.n) ((float*)p.to)[i] = i / p.step == i % p.step ? 1.0f : 0.0f;
}
)"};

}  // namespace

void full_cuda(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const size_t size = itemsize(o.dtype);
  alignas(8) char element[8];
  store_tile(o.dtype, element, 1, c.attrs.kind(0) == 3 ? kFloat64 : kInt64, &c.attrs.v[0], 1);
  for (size_t i = size; i < sizeof element; ++i) element[i] = element[i - size];
  FillArguments a{o.data(), o.numel * static_cast<int64_t>(size), 0};
  std::memcpy(&a.pattern, element, sizeof element);
  run_kernel(fill_kernel, {}, {blocks_for(a.bytes, 256, 16)}, a);
}

void zero_cuda(const TensorImpl& t) {
  const FillArguments a{t.data(), t.numel * static_cast<int64_t>(itemsize(t.dtype)), 0};
  run_kernel(fill_kernel, {}, {blocks_for(a.bytes, 256, 16)}, a);
}

void arange_cuda(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const SequenceArguments a{o.data(),     o.numel, c.attrs.v[0], c.attrs.v[1],
                            c.attrs.d(0), 0,       c.attrs.d(1)};
  run_kernel(arange_kernel, {.t = o.dtype}, {blocks_for(o.numel)}, a);
}

void linspace_cuda(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const double start = c.attrs.d(0), end = c.attrs.d(1);
  const double by = o.numel > 1 ? (end - start) / static_cast<double>(o.numel - 1) : 0.0;
  const SequenceArguments a{o.data(), o.numel, 0, 0, start, end, by};
  run_kernel(linspace_kernel, {}, {blocks_for(o.numel)}, a);
}

void eye_cuda(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const SequenceArguments a{o.data(), o.numel, 0, o.sizes[1], 0, 0, 0};
  run_kernel(eye_kernel, {}, {blocks_for(o.numel)}, a);
}

}  // namespace brrr
