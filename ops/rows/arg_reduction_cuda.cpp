// argmax and argmin on a GPU: as on the CPU, no order of comparison is laid down, because none
// changes the result.
#include <bit>
#include <vector>

#include "core/device_kernel.h"
#include "ops/rows/library_kernels.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

namespace {

// Elements that a warp or thread, or a block, takes. Longer lines are done in chunks, whose winners
// are lines in turn.
constexpr int64_t kWarpRow = 1024, kChunk = 16384, kColumnChunk = 256;

// [outer, n, inner], dense. `at` are the elements' numbers, where they are not their places in the
// line. The winners' numbers and, if wanted, values are [outer, chunks, inner].
BRRR_DEVICE_STRUCT(ArgArguments, {
  const char* x;
  const char* at;
  char* winner;
  char* value;
  long outer;
  long n;
  long inner;
  long chunk;
  long chunks;
});

// N: the maximum is asked for.
constexpr char kArgText[] = R"(
struct Best {
  TC x;
  long at;  // -1: nothing yet
};
// Every NaN is the extremum; of equals the first counts.
BRRR_VX bool beats(const Best& a, const Best& b) {
  if (a.at < 0 || b.at < 0) return b.at < 0;
  const bool a_nan = a.x != a.x, b_nan = b.x != b.x;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.x != b.x) return N ? a.x > b.x : a.x < b.x;
  return a.at < b.at;
}
BRRR_VX Best better(const Best& a, const Best& b) { return beats(a, b) ? a : b; }
BRRR_VX Best element(const ArgArguments& p, long offset, long i) {
  return {get((const T*)p.x + offset)[0], p.at ? ((const long*)p.at)[offset] : i};
}
// Elements begin, begin + step, ... below end of the line at `line`.
BRRR_VX Best take(const ArgArguments& p, long line, long begin, long step, long end) {
  Best best = {0, -1};
  long i = begin;
  for (; i + 3 * step < end; i += 4 * step) {
    Best e[4];
    for (int u = 0; u < 4; ++u) e[u] = element(p, line + (i + u * step) * p.inner, i + u * step);
    for (int u = 0; u < 4; ++u) best = better(best, e[u]);
  }
  for (; i < end; i += step) best = better(best, element(p, line + i * p.inner, i));
  return best;
}
BRRR_VX Best across_warp(Best a, int from) {
  for (int d = from; d > 0; d /= 2) {
    const Best b = {shuffle_down(a.x, d), shuffle_down(a.at, d)};
    a = better(a, b);
  }
  return a;
}
BRRR_VX void give(const ArgArguments& p, long to, const Best& best) {
  ((long*)p.winner)[to] = best.at;
  if (p.value) ((TC*)p.value)[to] = best.x;
}
)";

constexpr auto kWarpsText = join_text(kArgText, R"(
BLOCK_KERNEL(arg_warps, ArgArguments, 256) {
  const long row = (long)blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= p.outer) return;
  const Best best = across_warp(take(p, row * p.n, threadIdx.x % 32, 32, p.n), 16);
  if (threadIdx.x % 32 == 0) give(p, row, best);
}
)");
constexpr DeviceKernel arg_warps_kernel{"arg_warps", ArgArgumentsText, 256, kWarpsText.data()};

constexpr auto kBlocksText = join_text(kArgText, R"(
BLOCK_KERNEL(arg_blocks, ArgArguments, 256) {
  __shared__ Best warps[8];
  const long row = blockIdx.x / p.chunks, begin = blockIdx.x % p.chunks * p.chunk;
  const long end = p.n - begin < p.chunk ? p.n : begin + p.chunk;
  Best best = across_warp(take(p, row * p.n, begin + threadIdx.x, 256, end), 16);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = across_warp(warps[threadIdx.x % 8], 4);
  if (threadIdx.x == 0) give(p, blockIdx.x, best);
}
)");
constexpr DeviceKernel arg_blocks_kernel{"arg_blocks", ArgArgumentsText, 256, kBlocksText.data()};

constexpr auto kColumnsText = join_text(kArgText, R"(
BLOCK_KERNEL(arg_columns, ArgArguments, 256) {
  __shared__ Best rows[8][32];
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  const long tiles = (p.inner + 31) / 32, column = blockIdx.x % tiles * 32 + tx;
  const long line = blockIdx.x / tiles / p.chunks, chunk = blockIdx.x / tiles % p.chunks;
  const long begin = chunk * p.chunk, end = p.n - begin < p.chunk ? p.n : begin + p.chunk;
  if (column < p.inner) {
    rows[ty][tx] = take(p, line * p.n * p.inner + column, begin + ty, 8, end);
  }
  for (int d = 4; d > 0; d /= 2) {
    __syncthreads();
    if (ty < d && column < p.inner) rows[ty][tx] = better(rows[ty][tx], rows[ty + d][tx]);
  }
  if (ty == 0 && column < p.inner) {
    give(p, (line * p.chunks + chunk) * p.inner + column, rows[0][tx]);
  }
}
)");
constexpr DeviceKernel arg_columns_kernel{"arg_columns", ArgArgumentsText, 256,
                                          kColumnsText.data()};

void run_pass(ArgArguments& a, const Variant& v) {
  if (a.inner > 1) {
    run_kernel(arg_columns_kernel, v, {a.outer * a.chunks * ((a.inner + 31) / 32)}, a);
  } else if (a.n > kWarpRow) {
    run_kernel(arg_blocks_kernel, v, {a.outer * a.chunks}, a);
  } else {
    run_kernel(arg_warps_kernel, v, {blocks_for(a.outer, 8)}, a);
  }
}

void arg_cuda(OpCall& c, bool max) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DenseInput in(&x, x.dtype);
  const Lines l = lines_along(x, reduced_dim(c.attrs));
  const DType compute = compute_type(x.dtype);
  Variant v{.t = x.dtype, .n = max};
  ArgArguments a{in.as<char>(), nullptr, nullptr, nullptr, l.outer, l.n, l.inner, 0, 1};
  a.chunk = l.inner > 1 ? kColumnChunk : kChunk;
  std::vector<Tensor> winners;
  while (a.n > a.chunk) {
    a.chunks = (a.n + a.chunk - 1) / a.chunk;
    const IntList sizes = {a.outer, a.chunks, a.inner};
    const Tensor at = raw_empty(sizes, kInt64, x.device),
                 value = raw_empty(sizes, compute, x.device);
    a.winner = at.impl()->data();
    a.value = value.impl()->data();
    run_pass(a, v);
    winners.insert(winners.end(), {at, value});
    a.at = a.winner;
    a.x = a.value;
    a.n = a.chunks;
    a.chunks = 1;
    v.t = compute;
  }
  a.winner = y.data();
  a.value = nullptr;
  run_pass(a, v);
}

}  // namespace

void argmax_cuda(OpCall& c) {
  arg_cuda(c, true);
}
void argmin_cuda(OpCall& c) {
  arg_cuda(c, false);
}

}  // namespace brrr
