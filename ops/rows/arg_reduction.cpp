// argmax and argmin: the index of the first extremum along one dim. NaN counts as the extremum, as
// in PyTorch. The result does not depend on the order of comparison, so none is laid down.
#include <vector>

#include "core/check.h"
#include "core/device_kernel.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row_kernel.h"
#include "ops/reduction_ops.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

// Every NaN beats all numbers; of equals the first counts.
// clang-format off
BRRR_DEVICE_FUNCTIONS(kBeatsText,
  template <bool max, class T> BRRR_VX bool beats(T a, T b) {
    return (max ? a > b : a < b) || (a != a && b == b);
  }
  template <bool max, class T> BRRR_VX bool comes_first(T a, long at_a, T b, long at_b) {
    return beats<max>(a, b) || (!beats<max>(b, a) && at_a < at_b);
  }
);
// clang-format on

// --- on the CPU ----------------------------------------------------------------------------------

template <bool kMax, class V> vx::b16 better(V a, V b) {
  vx::b16 m = kMax ? vx::gt(a, b) : vx::lt(a, b);
  if constexpr (std::is_floating_point_v<Lane<V>>) m |= vx::ne(a, a) & vx::eq(b, b);
  return m;
}

// Lane k sees elements k, k + 16, ...; the earliest of the lanes' best ones wins.
template <bool kMax, class V> int64_t arg_of_row(const Lane<V>* p, int64_t n) {
  using T = Lane<V>;
  int64_t at = 0, i = 0;
  T best = p[0];
  if (n >= 32) {
    V top = vx::load(p);
    vx::i64 step{}, vector_step{};  // Which load each lane's best came from.
    for (i = 16; i + 16 <= n; i += 16) {
      const V x = vx::load(p + i);
      vector_step += 1;
      const vx::b16 m = better<kMax, V>(x, top);
      top = vx::where(m, x, top);
      step = vx::where(m, vector_step, step);
    }
    best = top[0];
    at = step[0] * 16;
    for (int k = 1; k < 16; ++k) {
      const int64_t where = step[k] * 16 + k;
      if (!comes_first<kMax, T>(top[k], where, best, at)) continue;
      best = top[k];
      at = where;
    }
  }
  for (; i < n; ++i) {
    if (!beats<kMax, T>(p[i], best)) continue;
    best = p[i];
    at = i;
  }
  return at;
}

// 16 columns from `p`, `lanes` of them real; rows are `stride` apart.
template <bool kMax, class V>
void arg_of_columns(const Lane<V>* p, int64_t stride, int64_t n, int lanes, int64_t* out) {
  V top = take<V>(p, lanes);
  vx::i64 at{}, index{};
  for (int64_t i = 1; i < n; ++i) {
    const V x = take<V>(p + i * stride, lanes);
    index += 1;
    const vx::b16 m = better<kMax, V>(x, top);
    top = vx::where(m, x, top);
    at = vx::where(m, index, at);
  }
  vx::store_n(reinterpret_cast<long*>(out), at, lanes);
}

// Units of work are an outer index and 16 of the inner ones, of [outer, n, inner].
template <bool kMax, class V> void arg_of_lines(const void* data, const Lines& l, int64_t* to) {
  const auto* x = static_cast<const Lane<V>*>(data);
  const int64_t tiles = (l.inner + 15) / 16, work = l.n * std::min<int64_t>(l.inner, 16);
  const int64_t grain = std::max<int64_t>(1, kRowGrain / work);
  parallel_for(l.outer * tiles, grain, [=, &l](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t o = u / tiles, c = u % tiles * 16;
      const Lane<V>* p = x + o * l.n * l.inner + c;
      int64_t* out = to + o * l.inner + c;
      if (l.inner == 1) {
        *out = arg_of_row<kMax, V>(p, l.n);
      } else {
        const int lanes = static_cast<int>(std::min<int64_t>(16, l.inner - c));
        arg_of_columns<kMax, V>(p, l.inner, l.n, lanes, out);
      }
    }
  });
}

Lines lines_of(const OpCall& c) { return lines_along(*c.in[0], reduced_dim(c.attrs)); }

template <bool kMax> void arg_cpu(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DType compute = compute_type(x.dtype);
  const DenseInput in(&x, compute);
  constexpr decltype(&arg_of_lines<kMax, vx::f32>) kernels[] = {
      arg_of_lines<kMax, vx::f32>, arg_of_lines<kMax, vx::f64>, arg_of_lines<kMax, vx::i64>,
      arg_of_lines<kMax, vx::i32>};
  kernels[compute_index(compute)](in.as<char>(), lines_of(c), reinterpret_cast<int64_t*>(y.data()));
}

// --- on a GPU ------------------------------------------------------------------------------------

// Elements of a line that a warp takes, or a column of a block's threads. Longer lines are done in
// chunks, whose winners are lines in turn.
constexpr int64_t kChunk = 1024, kColumnChunk = 256;

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
BRRR_VX Best better(const Best& a, const Best& b) {
  if (a.at < 0 || b.at < 0) return b.at < 0 ? a : b;
  return comes_first<N != 0>(a.x, a.at, b.x, b.at) ? a : b;
}
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
BRRR_VX void give(const ArgArguments& p, long to, const Best& best) {
  ((long*)p.winner)[to] = best.at;
  if (p.value) ((TC*)p.value)[to] = best.x;
}
)";

constexpr DeviceKernel arg_rows_kernel{"arg_rows", ArgArgumentsText, 256, {kBeatsText, kArgText, R"(
BLOCK_KERNEL(arg_rows, ArgArguments, 256) {
  const long at = (long)blockIdx.x * 8 + threadIdx.x / 32;
  if (at >= p.outer * p.chunks) return;
  const long row = at / p.chunks, begin = at % p.chunks * p.chunk;
  const long end = p.n - begin < p.chunk ? p.n : begin + p.chunk;
  Best best = take(p, row * p.n, begin + threadIdx.x % 32, 32, end);
  for (int d = 16; d > 0; d /= 2) {
    const Best other = {shuffle_down(best.x, d), shuffle_down(best.at, d)};
    best = better(best, other);
  }
  if (threadIdx.x % 32 == 0) give(p, at, best);
}
)"}};

constexpr DeviceKernel arg_columns_kernel{
    "arg_columns", ArgArgumentsText, 256, {kBeatsText, kArgText, R"(
BLOCK_KERNEL(arg_columns, ArgArguments, 256) {
  __shared__ TC values[8][32];
  __shared__ long places[8][32];
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  const long tiles = (p.inner + 31) / 32, column = blockIdx.x % tiles * 32 + tx;
  const long line = blockIdx.x / tiles / p.chunks, chunk = blockIdx.x / tiles % p.chunks;
  const long begin = chunk * p.chunk, end = p.n - begin < p.chunk ? p.n : begin + p.chunk;
  Best best = {0, -1};
  if (column < p.inner) best = take(p, line * p.n * p.inner + column, begin + ty, 8, end);
  values[ty][tx] = best.x;
  places[ty][tx] = best.at;
  for (int d = 4; d > 0; d /= 2) {
    __syncthreads();
    if (ty >= d) continue;
    best = better(best, {values[ty + d][tx], places[ty + d][tx]});
    values[ty][tx] = best.x;
    places[ty][tx] = best.at;
  }
  if (ty == 0 && column < p.inner) give(p, (line * p.chunks + chunk) * p.inner + column, best);
}
)"}};

void run_pass(ArgArguments& a, const Variant& v) {
  if (a.inner > 1) {
    run_kernel(arg_columns_kernel, v, {a.outer * a.chunks * ((a.inner + 31) / 32)}, a);
  } else {
    run_kernel(arg_rows_kernel, v, {blocks_for(a.outer * a.chunks, 8)}, a);
  }
}

template <bool kMax> void arg_cuda(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DenseInput in(&x, x.dtype);
  const Lines l = lines_of(c);
  const DType compute = compute_type(x.dtype);
  Variant v{.t = x.dtype, .n = kMax};
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

// --- rows ----------------------------------------------------------------------------------------

// ReductionAttrs with a mask of one bit.
void arg_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  const auto a = c.attrs.as<ReductionAttrs>();
  for (int d = 0; d < x.ndim; ++d) {
    BRRR_CHECK(!(a.mask >> d & 1) || x.sizes[d] > 0,
               "{}: dim {} of {} has no elements; give a shape without 0", c.op->name, d,
               describe(&x));
  }
  set_meta(c, 0, kInt64, reduced_sizes(x.size_list(), a));
}

const OpDef argmax_row{"argmax",
                       "Index of the first maximum along a dim; NaN wins",
                       {.infer = arg_infer, .kernel = {{arg_cpu<true>}, {arg_cuda<true>}}}};
const OpDef argmin_row{"argmin",
                       "Index of the first minimum along a dim; NaN wins",
                       {.infer = arg_infer, .kernel = {{arg_cpu<false>}, {arg_cuda<false>}}}};

}  // namespace

Tensor argmax(const Tensor& x, int64_t d, bool keep) { return reduce(argmax_row, x, d, keep); }
Tensor argmin(const Tensor& x, int64_t d, bool keep) { return reduce(argmin_row, x, d, keep); }

}  // namespace brrr
