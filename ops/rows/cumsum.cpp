// Cumulative sums along one dim.
//
// ORDER: each line along the dim is summed sequentially from its first element (for the gradient:
// from its last). 16-bit floats are summed in float32 and each result is rounded. A GPU has another
// order, see below.
#include <utility>

#include "core/device_kernel.h"
#include "ops/kinds/row_kernel.h"
#include "ops/library_ops.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

namespace {

constexpr int64_t kRows = 4;      // Contiguous lines and
constexpr int64_t kColumns = 64;  // adjacent lines at a time, to overlap the latency of additions.

// [outer, n, inner], dense.
template <class V> struct Scan : Lines {
  using T = Lane<V>;
  const T* x;
  T* y;
  bool reverse;

  // `count` adjacent lines from offset `at` on.
  void columns(int64_t at, int64_t count) const {
    const int64_t step = reverse ? -inner : inner;
    if (reverse) at += (n - 1) * inner;
    std::copy_n(x + at, count, y + at);
    for (int64_t i = 1; i < n; ++i, at += step) {
      map_row(count, [=, this](int64_t k, int lanes) {
        const T* from = x + at + step + k;
        const Num<V> before = take<V>(y + at + k, lanes);
        put<V>(y + at + step + k, (before + take<V>(from, lanes)).v, lanes);
      });
    }
  }

  // kCount contiguous lines from offset `at` on.
  template <int64_t kCount> void rows(int64_t at) const {
    const int64_t step = reverse ? -1 : 1;
    if (reverse) at += n - 1;
    T total[kCount];  // In registers, because loops over it are unrolled.
    std::fill_n(total, kCount, -T(0));
    for (int64_t i = 0; i < n; ++i, at += step) {
#pragma GCC unroll 4
      for (int64_t k = 0; k < kCount; ++k) total[k] = wrapping_sum(total[k], x[at + k * n]);
#pragma GCC unroll 4
      for (int64_t k = 0; k < kCount; ++k) y[at + k * n] = total[k];
    }
  }

  void run() const {
    const int64_t tiles = (inner + kColumns - 1) / kColumns;
    const int64_t units = inner == 1 ? (outer + kRows - 1) / kRows : outer * tiles;
    const int64_t grain = std::max<int64_t>(1, kRowGrain * units / (outer * n * inner));
    parallel_for(units, grain, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        if (inner > 1) {
          const int64_t column = u % tiles * kColumns;
          columns(u / tiles * n * inner + column, std::min(kColumns, inner - column));
        } else if (u * kRows + kRows <= outer) {
          rows<kRows>(u * kRows * n);
        } else {
          for (int64_t r = u * kRows; r < outer; ++r) rows<1>(r * n);
        }
      }
    });
  }
};

DType sum_dtype(DType t) { return is_floating(t) ? t : kInt64; }

struct CumsumAttrs {
  int64_t dim;
  int64_t reverse;  // Sums run from the end of the dim.
};

template <class V> void scan_cpu(OpCall& c) {
  constexpr DType compute = DTypeOf<Lane<V>>::value;
  const DenseInput in(c.in[0], compute);
  DenseOutput out(c.out[0], compute);
  const bool reverse = c.attrs.as<CumsumAttrs>().reverse;
  Scan<V>{lines_along(*c.in[0], dim_of(c.attrs)), in.as<Lane<V>>(), out.as<Lane<V>>(), reverse}
      .run();
  out.finish();
}

void cumsum_cpu(OpCall& c) {
  if (c.in[0]->numel == 0) return;
  const DType t = c.out[0].dtype();
  const auto kernel = t == kInt64     ? scan_cpu<vx::i64>
                      : t == kFloat64 ? scan_cpu<vx::f64>
                                      : scan_cpu<vx::f32>;
  kernel(c);
}

// --- on a GPU ------------------------------------------------------------------------------------
//
// ORDER: a function of the shape alone. Adjacent lines (inner > 1), and lines of at most kShort
// elements, are cut into chunks of kColumnChunk elements, or not at all if there are kManyLines or
// more; each chunk is summed sequentially. Other lines are cut into chunks of 2048: each of 256
// threads sums 8 elements sequentially, a warp scans its threads' sums by doubling the distance,
// the warps' sums are added sequentially. The sum of all earlier chunks, itself from a cumulative
// sum over the chunks' totals, is added to each element last.

constexpr int64_t kShort = 64, kChunk = 2048, kColumnChunk = 256, kManyLines = 1 << 16;

// [outer, n, inner], dense. `totals`, written instead of y, are the sums of each chunk, `before`
// the cumulative sums up to each chunk's end: both [outer, chunks, inner].
BRRR_DEVICE_STRUCT(CumsumArguments, {
  const char* x;
  char *y, *totals;
  const char* before;
  long outer, n, inner, chunk, chunks;
  int reverse;
});

// none() + x is x, also for -0.
constexpr char kCumsumText[] = R"(
BRRR_VX UCV none() { return UCV((UC)-0.0); }
BRRR_VX UCV element(const CumsumArguments& p, long i) {
  return UCV((UC)get((const T*)p.x + i)[0]);
}
// The position in its line of the i-th element that is summed.
BRRR_VX long place(const CumsumArguments& p, long i) { return p.reverse ? p.n - 1 - i : i; }
)";

// One thread per chunk of a line.
constexpr DeviceKernel columns_kernel{"cumsum_columns", CumsumArgumentsText, 256, {kCumsumText, R"(
EACH_KERNEL(cumsum_columns, CumsumArguments, 256, at, p.outer * p.chunks * p.inner) {
  const long chunk = at / p.inner % p.chunks;
  const long line = at / p.inner / p.chunks * p.n * p.inner + at % p.inner;
  const long begin = chunk * p.chunk, end = p.n - begin < p.chunk ? p.n : begin + p.chunk;
  const UCV before = chunk && p.before ? splat(((const UC*)p.before)[at - p.inner]) : none();
  UCV sum = none();
  for (long i = begin; i < end; i += 8) {  // 8 loads at a time, none of which waits for a store.
    UCV v[8];
    for (int u = 0; u < 8; ++u) {
      v[u] = i + u < end ? element(p, line + place(p, i + u) * p.inner) : none();
    }
    for (int u = 0; u < 8 && i + u < end; ++u) {
      sum = sum + v[u];
      if (!p.totals) put_u((U*)p.y + line + place(p, i + u) * p.inner, before + sum);
    }
  }
  if (p.totals) store((UC*)p.totals + at, sum);
}
)"}};

// One block per chunk of a contiguous line. Shared memory makes the loads and stores coalesced,
// while each thread sums 8 consecutive elements. Every ninth slot pads against bank conflicts.
constexpr DeviceKernel rows_kernel{"cumsum_rows", CumsumArgumentsText, 256, {kCumsumText, R"(
BLOCK_KERNEL(cumsum_rows, CumsumArguments, 256) {
  __shared__ UC room[256 * 9];
  __shared__ UC warps[8];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const long chunk = blockIdx.x % p.chunks, line = blockIdx.x / p.chunks * p.n;
  for (int u = 0; u < 8; ++u) {
    const int j = u * 256 + thread;
    const long i = chunk * 2048 + j;
    store(room + j + j / 8, i < p.n ? element(p, line + place(p, i)) : none());
  }
  __syncthreads();
  UCV sum[8];
  sum[0] = splat(room[thread * 9]);
  for (int u = 1; u < 8; ++u) sum[u] = sum[u - 1] + splat(room[thread * 9 + u]);
  UCV all = sum[7];
  for (int d = 1; d < 32; d *= 2) {
    const UCV left = splat(shuffle(all[0], (lane - d) & 31));
    if (lane >= d) all = left + all;
  }
  if (lane == 31) store(warps + warp, all);
  const UCV left = splat(shuffle(all[0], (lane - 1) & 31));
  __syncthreads();
  UCV before = none();
  for (int w = 0; w < warp; ++w) before = before + splat(warps[w]);
  if (p.totals) {
    if (thread == 255) store((UC*)p.totals + blockIdx.x, before + all);
    return;
  }
  if (lane > 0) before = before + left;
  const UCV carry = chunk && p.before ? splat(((const UC*)p.before)[blockIdx.x - 1]) : none();
  for (int u = 0; u < 8; ++u) store(room + thread * 9 + u, carry + (before + sum[u]));
  __syncthreads();
  for (int u = 0; u < 8; ++u) {
    const int j = u * 256 + thread;
    const long i = chunk * 2048 + j;
    if (i < p.n) put_u((U*)p.y + line + place(p, i), splat(room[j + j / 8]));
  }
}
)"}};

void run_pass(const CumsumArguments& a, const Variant& v) {
  if (a.inner > 1 || a.n <= kShort) {
    run_kernel(columns_kernel, v, {blocks_for(a.outer * a.chunks * a.inner)}, a);
  } else {
    run_kernel(rows_kernel, v, {a.outer * a.chunks}, a);
  }
}

// The caller fills all of `a` but chunk, chunks, totals and before.
void scan(CumsumArguments a, const Variant& v) {
  const bool rows = a.inner == 1, uncut = !rows && a.outer * a.inner >= kManyLines;
  a.chunk = rows ? kChunk : uncut ? a.n : kColumnChunk;
  a.chunks = (a.n + a.chunk - 1) / a.chunk;
  if (a.chunks == 1) return run_pass(a, v);
  const DType compute = compute_type(v.u);
  const Tensor totals = raw_empty({a.outer, a.chunks, a.inner}, compute, kCUDA);
  char* y = a.y;
  a.y = nullptr;
  a.totals = totals.impl()->data();
  run_pass(a, v);
  scan({a.totals, a.totals, nullptr, nullptr, a.outer, a.chunks, a.inner, 0, 0, 0},
       {.t = compute, .u = compute});
  a.before = std::exchange(a.totals, nullptr);
  a.y = y;
  run_pass(a, v);
}

void cumsum_cuda(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (x.numel == 0) return;
  const DenseInput in(&x, x.dtype);
  const Lines l = lines_along(x, dim_of(c.attrs));
  const bool reverse = c.attrs.as<CumsumAttrs>().reverse;
  scan({in.as<char>(), y.data(), nullptr, nullptr, l.outer, l.n, l.inner, 0, 0, reverse},
       {.t = x.dtype, .u = y.dtype});
}

void cumsum_infer(OpCall& c) { set_meta(c, 0, sum_dtype(c.in[0]->dtype), c.in[0]->size_list()); }

const OpDef cumsum_row{
    "cumsum",
    "cumulative sums along a dim; integers and bool give int64",
    {.infer = cumsum_infer,
     .kernel = {{cumsum_cpu}, {cumsum_cuda}},
     .work = [](const OpCall& c) -> Work {
       return {static_cast<double>(c.in[0]->numel), operand_bytes(c)};
     },
     .vjp =
         [](VjpCall& v) {
           const auto a = v.attrs().as<CumsumAttrs>();
           v.gin[0] = call(cumsum_row, {v.gout[0]}, CumsumAttrs{a.dim, !a.reverse});
         }}};

}  // namespace

Tensor cumsum(const Tensor& x, int64_t dim) {
  return call(cumsum_row, {x}, CumsumAttrs{dim_arg("cumsum", x, dim), false});
}
Tensor Tensor::cumsum(int64_t dim) const { return brrr::cumsum(*this, dim); }

}  // namespace brrr
