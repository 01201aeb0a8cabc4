// argmax and argmin: the index of the first extremum along one dim. NaN counts as the extremum, as
// in PyTorch. The result does not depend on the order of comparisons, so none is prescribed.
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/device_kernel.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/row_kernel.h"
#include "ops/reduction_ops.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

// Every NaN beats every number; among equals the first wins.
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

template <bool kMax, class V> [[gnu::always_inline]] inline vx::b16 better(V a, V b) {
  vx::b16 m = kMax ? vx::gt(a, b) : vx::lt(a, b);
  if constexpr (std::is_floating_point_v<Lane<V>>) m |= vx::ne(a, a) & vx::eq(b, b);
  return m;
}

// 16 columns from `p` on, the first `lanes` of them valid; rows are `stride` apart.
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

// Treats the row as 16 columns; the first of their extrema wins.
template <bool kMax, class V> int64_t arg_of_row(const Lane<V>* p, int64_t n) {
  int64_t at = 0, i = 1;
  const auto consider = [&](int64_t j) {
    if (comes_first<kMax>(p[j], j, p[at], at)) at = j;
  };
  if (n >= 32) {
    int64_t row[16];  // Where each column has its extremum.
    arg_of_columns<kMax, V>(p, 16, n / 16, 16, row);
    at = row[0] * 16;
    for (int k = 1; k < 16; ++k) consider(row[k] * 16 + k);
    i = n / 16 * 16;
  }
  for (; i < n; ++i) consider(i);
  return at;
}

// Over [outer, n, inner]; a unit of work is one outer index and 16 inner ones.
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

template <bool kMax> void arg_cpu(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DType compute = compute_type(x.dtype);
  const DenseInput in(&x, compute);
  constexpr decltype(&arg_of_lines<kMax, vx::f32>) kernels[] = {
      arg_of_lines<kMax, vx::f32>, arg_of_lines<kMax, vx::f64>, arg_of_lines<kMax, vx::i64>,
      arg_of_lines<kMax, vx::i32>};
  kernels[compute_index(compute)](in.as<char>(), lines_along(x, reduced_dim(c.attrs)),
                                  reinterpret_cast<int64_t*>(y.data()));
}

// --- on a GPU ------------------------------------------------------------------------------------

// `t` with dim `dim` moved last.
Tensor with_last(const TensorImpl& t, int dim) {
  IntList sizes = t.size_list(), strides = t.stride_list();
  if (dim < t.ndim) {
    std::rotate(sizes.begin() + dim, sizes.begin() + dim + 1, sizes.end());
    std::rotate(strides.begin() + dim, strides.begin() + dim + 1, strides.end());
  }
  return memory_view(t, sizes, strides, t.offset);
}

// Elements of a row that one warp reduces. Longer rows are reduced in chunks, whose winners are the
// rows of the next pass.
constexpr int64_t kChunk = 1024;

// x is [rows, n], dense. `at` holds the elements' original positions, null in the first pass. The
// winners' positions and values (null in the last pass) are [rows, chunks].
BRRR_DEVICE_STRUCT(ArgArguments, {
  const char *x, *at;
  char *winner, *value;
  long rows, n, chunks;
});

// N: 1 for the maximum, 0 for the minimum.
constexpr DeviceKernel arg_rows_kernel{"arg_rows", ArgArgumentsText, 256, {kBeatsText, R"(
struct Best {
  TC x;
  long at;  // -1: nothing yet
};
BRRR_VX Best better(const Best& a, const Best& b) {
  if (a.at < 0 || b.at < 0) return b.at < 0 ? a : b;
  return comes_first<N != 0>(a.x, a.at, b.x, b.at) ? a : b;
}
BLOCK_KERNEL(arg_rows, ArgArguments, 256) {
  const long to = (long)blockIdx.x * 8 + threadIdx.x / 32;
  if (to >= p.rows * p.chunks) return;
  const long row = to / p.chunks * p.n, begin = to % p.chunks * 1024;
  const long end = p.n - begin < 1024 ? p.n : begin + 1024;
  Best best = {0, -1};
#pragma unroll 4
  for (long i = begin + threadIdx.x % 32; i < end; i += 32) {
    best = better(best, {get((const T*)p.x + row + i)[0], p.at ? ((const long*)p.at)[row + i] : i});
  }
  for (int d = 16; d > 0; d /= 2) {
    const Best other = {shuffle_down(best.x, d), shuffle_down(best.at, d)};
    best = better(best, other);
  }
  if (threadIdx.x % 32 != 0) return;
  ((long*)p.winner)[to] = best.at;
  if (p.value) ((TC*)p.value)[to] = best.x;
}
)"}};

template <bool kMax> void arg_cuda(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const Tensor rows = with_last(x, reduced_dim(c.attrs));
  const DenseInput in(rows.impl(), x.dtype);
  const DType compute = compute_type(x.dtype);
  Variant v{.t = x.dtype, .n = kMax};
  ArgArguments a{in.as<char>(), nullptr, nullptr, nullptr, y.numel, x.numel / y.numel, 1};
  std::vector<Tensor> winners;
  const auto allocate = [&](DType t) {
    return winners.emplace_back(raw_empty({a.rows, a.chunks}, t, x.device)).impl()->data();
  };
  for (bool last = false; !last; a.n = a.chunks) {
    a.chunks = blocks_for(a.n, kChunk);
    last = a.chunks == 1;
    a.winner = last ? y.data() : allocate(kInt64);
    a.value = last ? nullptr : allocate(compute);
    run_kernel(arg_rows_kernel, v, {blocks_for(a.rows * a.chunks, 8)}, a);
    a.at = a.winner;
    a.x = a.value;
    v.t = compute;
  }
}

// Attributes: ReductionAttrs with one bit in the mask.
void arg_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  const int dim = reduced_dim(c.attrs);
  BRRR_CHECK(lines_along(x, dim).n > 0, "{}: dim {} of {} has no elements; give a shape without 0",
             c.op->name, dim, describe(&x));
  set_meta(c, 0, kInt64, reduced_sizes(x.size_list(), c.attrs.as<ReductionAttrs>()));
}

int64_t arg_scratch(const OpCall& c) {
  return DenseInput::bytes(*c.in[0], compute_type(c.in[0]->dtype));
}

template <bool kMax>
constexpr OpSpec kArg{
    .infer = arg_infer, .kernel = {{arg_cpu<kMax>}, {arg_cuda<kMax>}}, .scratch = arg_scratch};
const OpDef argmax_row{"argmax", "Index of the first maximum along a dim; NaN wins", kArg<true>};
const OpDef argmin_row{"argmin", "Index of the first minimum along a dim; NaN wins", kArg<false>};

}  // namespace

Tensor argmax(const Tensor& x, int64_t d, bool keep) { return reduce(argmax_row, x, d, keep); }
Tensor argmin(const Tensor& x, int64_t d, bool keep) { return reduce(argmin_row, x, d, keep); }

}  // namespace brrr
