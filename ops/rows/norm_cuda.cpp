// Layer norm and root-mean-square norm on a GPU: a row is read once and written once.
#include "ops/rows/nn_kernels.h"
#include "ops/kinds/row_device.h"

namespace brrr {

namespace {

// --- forward -------------------------------------------------------------------------------------

// kFlags: whether rows are centred. Weight and bias, in U, may be null.
BRRR_DEVICE_STRUCT(NormArguments, {
  const char* x;
  const char* weight;
  const char* bias;
  char* y;
  char* mean;
  char* rstd;
  long rows;
  long n;
  double eps;
});

constexpr auto norm_text = row_text(R"(
BLOCK_KERNEL(norm_rows, NormArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand x(p, p.x, n);
  const TCV count = splat((TC)p.n);
  TCV mean{};
  if (kFlags) mean = sum_groups(n, [](long, const Group& d) { return d; }, x) / count;
  const auto centred = [&](Group d) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (kFlags) d.v[u] = d.v[u] - mean;
    }
    return d;
  };
  const auto square = [&](long, const Group& g) {
    Group d = centred(g);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] * d.v[u];
    return d;
  };
  const TCV rstd = rsqrt(sum_groups(n, square, x) / count + splat((TC)p.eps));
  const auto affine = [&](long i, const Group& g) {
    Group d = centred(g);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] * rstd;
    if (p.weight) {
      const Group w = load_group_u((const U*)p.weight + i);
#pragma unroll
      for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] * w.v[u];
    }
    if (p.bias) {
      const Group b = load_group_u((const U*)p.bias + i);
#pragma unroll
      for (int u = 0; u < kGroup; ++u) d.v[u] = d.v[u] + b.v[u];
    }
    return d;
  };
  map_groups(n, (T*)p.y + row * p.n, affine, x);
  if (lane() == 0 && row < p.rows) {
    if (kFlags) store((TC*)p.mean + row, mean);
    store((TC*)p.rstd + row, rstd);
  }
}
)");
constexpr RowKernel norm_kernel = row_kernel("norm_rows", NormArgumentsText, norm_text.data());

// --- dx ------------------------------------------------------------------------------------------

BRRR_DEVICE_STRUCT(NormBackwardArguments, {
  const char* x;
  const char* weight;
  const char* g;
  const char* mean;
  const char* rstd;
  char* to;
  long rows;
  long n;
});

constexpr auto norm_backward_text = row_text(R"(
BLOCK_KERNEL(norm_backward, NormBackwardArguments, kThreads) {
  const long row = this_row(), n = row < p.rows ? p.n : 0;
  Operand x(p, p.x, n), g(p, p.g, n);
  TCV mean{}, rstd{};
  if (n > 0) {
    if (kFlags) mean = load((const TC*)p.mean + row);
    rstd = load((const TC*)p.rstd + row);
  }
  const auto normalized = [&](Group h) {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) h.v[u] = (kFlags ? h.v[u] - mean : h.v[u]) * rstd;
    return h;
  };
  const auto weighted = [&](long i, Group v) {
    if (p.weight) {
      const Group w = load_group_u((const U*)p.weight + i);
#pragma unroll
      for (int u = 0; u < kGroup; ++u) v.v[u] = v.v[u] * w.v[u];
    }
    return v;
  };
  TCV along[2] = {};  // The row of ones, which only centring makes matter, and the normalized row.
  const auto add = [&](long i, const Group& a, const Group& b) {
    const Group v = weighted(i, b), h = normalized(a);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (kFlags) along[0] = along[0] + v.v[u];
      along[1] = along[1] + v.v[u] * h.v[u];
    }
  };
  for_groups(n, add, x, g);
  across(along, Add{});
  const TCV count = splat((TC)p.n), c1 = along[0] / count, ch = along[1] / count;
  const auto dx = [&](long i, const Group& a, const Group& b) {
    Group d = weighted(i, b);
    const Group h = normalized(a);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (kFlags) d.v[u] = d.v[u] - c1;
      d.v[u] = (d.v[u] - h.v[u] * ch) * rstd;
    }
    return d;
  };
  map_groups(n, (T*)p.to + row * p.n, dx, x, g);
}
)");
constexpr RowKernel norm_backward_kernel =
    row_kernel("norm_backward", NormBackwardArgumentsText, norm_backward_text.data());

// --- dweight and dbias ---------------------------------------------------------------------------

// Sums of columns over kReduceBlock rows, one after the other, as on the CPU: each block's sums for
// weight and, with kFlags, for bias. A thread has a group of columns.
constexpr auto norm_columns_text = row_text(R"(
KERNEL(norm_columns, NormBackwardArguments, 256) {
  const long t = (long)blockIdx.x * 256 + threadIdx.x, groups = p.n / kGroup;
  const long block = t / groups, column = t % groups * kGroup;
  constexpr int kBlock = 64, sums = kFlags ? 2 : 1;
  if (block * kBlock >= p.rows && block > 0) return;
  const long last = (block + 1) * kBlock < p.rows ? (block + 1) * kBlock : p.rows;
  Group dw = {}, db = {};
#pragma unroll 4
  for (long r = block * kBlock; r < last; ++r) {
    const Group x = load_group((const T*)p.x + r * p.n + column);
    const Group g = load_group((const T*)p.g + r * p.n + column);
    const TCV rstd = load((const TC*)p.rstd + r);
    const TCV mean = kFlags ? load((const TC*)p.mean + r) : TCV{};
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      dw.v[u] = dw.v[u] + g.v[u] * ((kFlags ? x.v[u] - mean : x.v[u]) * rstd);
      db.v[u] = db.v[u] + g.v[u];
    }
  }
  TC* to = (TC*)p.to + block * sums * p.n + column;
#pragma unroll
  for (int u = 0; u < kGroup; ++u) {
    store(to + u, dw.v[u]);
    if (kFlags) store(to + p.n + u, db.v[u]);
  }
}
)");
constexpr DeviceKernel norm_columns_kernel{"norm_columns", NormBackwardArgumentsText, 256,
                                           norm_columns_text.data()};
static_assert(kReduceBlock == 64, "as in the text");

BRRR_DEVICE_STRUCT(NormTotalsArguments, {
  const char* part;
  char* dweight;
  char* dbias;
  long parts;
  long width;
  long n;
});

// The sums of those: part b goes to slot b % 32, which adds them in order; then a tree over slots.
constexpr DeviceKernel norm_totals_kernel{"norm_totals", NormTotalsArgumentsText, 1024, R"(
BLOCK_KERNEL(norm_totals, NormTotalsArguments, 1024) {
  __shared__ TC partial[32][32];
  const int tx = threadIdx.x % 32, slot = threadIdx.x / 32;
  const long column = (long)blockIdx.x * 32 + tx;
  TCV sum{};
  if (column < p.width) {
#pragma unroll 8
    for (long b = slot; b < p.parts; b += 32) {
      sum = sum + load((const TC*)p.part + b * p.width + column);
    }
  }
  partial[slot][tx] = sum[0];
  for (int d = 16; d > 0; d /= 2) {
    __syncthreads();
    if (slot < d) partial[slot][tx] += partial[slot + d][tx];
  }
  if (slot > 0 || column >= p.width) return;
  T* to = column < p.n ? (T*)p.dweight + column : (T*)p.dbias + (column - p.n);
  put(to, splat(partial[0][tx]));
}
)"};

// --- drivers -------------------------------------------------------------------------------------

template <bool centred> void norm_cuda(OpCall& c) {
  const TensorImpl &x = *c.in[0], *weight = c.in[1], *bias = centred ? c.in[2] : nullptr;
  const NormShape s(x, c.attrs);
  const DType affine = weight ? common_dtype(*weight, bias) : bias ? bias->dtype : x.dtype;
  const RowInput from(&x, x.dtype), w(weight, affine), b(bias, affine);
  run_rows(norm_kernel, s.rows, s.n, x.dtype, affine, centred,
           NormArguments{from.data(), w.data(), b.data(), c.out[0].impl()->data(),
                         c.out[1].impl()->data(), c.out[c.n_out - 1].impl()->data(), s.rows, s.n,
                         c.attrs.d(1)});
}

template <bool centred> void norm_backward_cuda(OpCall& c) {
  constexpr int g_at = centred ? 4 : 3;
  const TensorImpl &x = *c.in[0], *weight = c.in[1], &g = *c.in[g_at];
  const NormShape s(x, c.attrs);
  const DType dtype = common_dtype(x, &g), compute = compute_type(x.dtype);
  const DType affine = weight ? weight->dtype : x.dtype;
  const RowInput from(&x, dtype), w(weight, affine), gradient(&g, dtype);
  const DenseInput mean(c.in[2], compute), rstd(c.in[g_at - 1], compute);
  DenseOutput dx(c.out[0], dtype);
  NormBackwardArguments a{from.data(),     w.data(),      gradient.data(), mean.as<char>(),
                          rstd.as<char>(), dx.as<char>(), s.rows,          s.n};
  run_rows(norm_backward_kernel, s.rows, s.n, dtype, affine, centred, a);
  dx.finish();
  if (c.n_out == 1) return;

  const TensorImpl& part = *c.out[c.n_out - 1].impl();
  a.to = part.data();
  RowForm form(s.n, dtype);  // Only its groups matter to threads that own columns.
  form.log_lanes = form.held = 0;
  const int64_t parts = part.sizes[0], width = part.sizes[1] * s.n;
  run_kernel(norm_columns_kernel, {.t = dtype, .u = dtype, .n = form.bits(centred)},
             {blocks_for(parts * (s.n >> form.log_group))}, a);
  char* dbias = centred ? c.out[2].impl()->data() : nullptr;
  run_kernel(norm_totals_kernel, {.t = affine}, {blocks_for(width, 32)},
             NormTotalsArguments{part.data(), c.out[1].impl()->data(), dbias, parts, width, s.n});
}

}  // namespace

void layer_norm_cuda(OpCall& c) {
  norm_cuda<true>(c);
}
void rms_norm_cuda(OpCall& c) {
  norm_cuda<false>(c);
}
void layer_norm_backward_cuda(OpCall& c) {
  norm_backward_cuda<true>(c);
}
void rms_norm_backward_cuda(OpCall& c) {
  norm_backward_cuda<false>(c);
}

}  // namespace brrr
