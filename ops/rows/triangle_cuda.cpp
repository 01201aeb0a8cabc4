// The lower or upper triangle of matrices on a GPU.
#include <algorithm>

#include "core/device_kernel.h"
#include "ops/rows/library_kernels.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

BRRR_DEVICE_STRUCT(TriangleArguments, {
  const char* from;
  char* to;
  long n;
  long rows;
  long cols;
  long diagonal;
  int lower;
});

// N elements of a row a thread.
constexpr DeviceKernel triangle_kernel{"triangle", TriangleArgumentsText, 256, R"(
KERNEL(triangle, TriangleArguments, 256) {
  typedef Pack<T, N> Unit;
  const long at = ((long)blockIdx.x * 256 + threadIdx.x) * N;
  if (at >= p.n) return;
  const long edge = at / p.cols % p.rows + p.diagonal, column = at % p.cols;
  Unit v = {};
  if (p.lower ? column <= edge : column + N > edge) v = *(const Unit*)((const T*)p.from + at);
  for (int u = 0; u < N; ++u) {
    if (p.lower ? column + u > edge : column + u < edge) v.v[u] = (T)0;
  }
  *(Unit*)((T*)p.to + at) = v;
}
)"};

void triangle_cuda(OpCall& c, bool lower) {
  const TensorImpl& x = *c.in[0];
  TensorImpl& y = *c.out[0].impl();
  if (y.numel == 0) return;
  const bool dense = x.contiguous();
  if (!dense) copy_now(y, x);
  const int64_t rows = x.sizes[x.ndim - 2], cols = x.sizes[x.ndim - 1];
  // Clamped, so that no sum with a row's number overflows.
  const int64_t diagonal = std::clamp(c.attrs.v[0], -rows, cols);
  const TriangleArguments a{
      dense ? x.data() : y.data(), y.data(), y.numel, rows, cols, diagonal, lower};
  const auto item = static_cast<int64_t>(itemsize(x.dtype));
  const bool aligned = (reinterpret_cast<uintptr_t>(a.from) | reinterpret_cast<uintptr_t>(a.to) |
                        static_cast<uintptr_t>(cols * item)) %
                           16 ==
                       0;
  const int each = aligned ? static_cast<int>(16 / item) : 1;
  run_kernel(triangle_kernel, {.t = x.dtype, .n = each}, {blocks_for(y.numel, 256, each)}, a);
}

}  // namespace

void tril_cuda(OpCall& c) {
  triangle_cuda(c, true);
}
void triu_cuda(OpCall& c) {
  triangle_cuda(c, false);
}

}  // namespace brrr
