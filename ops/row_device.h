#pragma once
// Kernels over rows on a GPU: the text that they share, and how their threads are laid out.
//
// THE ORDER within a row is a function of its length n and dtype only. The row is cut into groups
// of `group` neighbours, the largest power of two that divides n and fills 16 bytes at most. Group
// k belongs to lane k % lanes, which combines its elements by increasing index. The lanes' results
// are combined by a butterfly over each warp (distances 16, 8, ... 1), then by one over the warps.

#include <array>

#include "core/device_kernel.h"
#include "ops/row_kernel.h"

namespace brrr {

/// Before each of these kernels' own text; Variant::n is RowForm::bits().
inline constexpr char kRowText[] = R"(
constexpr int kGroup = 1 << (N & 3), kLanes = 1 << (N >> 2 & 15), kHeld = N >> 6 & 63;
constexpr int kFlags = N >> 12;
constexpr int kThreads = kLanes < 256 ? 256 : kLanes, kRows = kThreads / kLanes;

struct Group { TCV v[kGroup]; };
BRRR_VX Group load_group(const T* p) {
  const Pack<T, kGroup> raw = *(const Pack<T, kGroup>*)p;
  Group g;
#pragma unroll
  for (int u = 0; u < kGroup; ++u) g.v[u] = get(raw.v + u);
  return g;
}
BRRR_VX void store_group(T* p, const Group& g) {
  Pack<T, kGroup> raw;
#pragma unroll
  for (int u = 0; u < kGroup; ++u) put(raw.v + u, g.v[u]);
  *(Pack<T, kGroup>*)p = raw;
}
// U may be wider than T.
BRRR_VX Group load_group_u(const U* p) {
  constexpr int step = kGroup * sizeof(U) > 16 ? 16 / sizeof(U) : kGroup;
  Group g;
#pragma unroll
  for (int k = 0; k < kGroup; k += step) {
    const Pack<U, step> raw = *(const Pack<U, step>*)(p + k);
#pragma unroll
    for (int u = 0; u < step; ++u) g.v[k + u] = get_u(raw.v + u);
  }
  return g;
}

BRRR_VX int lane() { return threadIdx.x % kLanes; }
BRRR_VX long this_row() { return (long)blockIdx.x * kRows + threadIdx.x / kLanes; }

// f(i, k) for this lane's groups: elements i ... of the row, held at place k.
template <class F> BRRR_VX void for_groups(long n, F f) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = (k * kLanes + lane()) * kGroup;
      if (i < n) f(i, k);
    }
  } else {
    for (long i = lane() * kGroup; i < n; i += kLanes * kGroup) f(i, 0);
  }
}

// A row that is read once and stays in registers; where it is too long for that, read each time.
struct Operand {
  const T* x;
  Group held[kHeld > 0 ? kHeld : 1];
  __device__ __forceinline__ Operand(const T* from, long n) : x(from) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int i = (k * kLanes + lane()) * kGroup;
        if (i < n) held[k] = load_group(from + i);
      }
    }
  }
  __device__ __forceinline__ Group at(long i, int k) const {
    if constexpr (kHeld > 0) {
      return held[k];
    } else {
      return load_group(x + i);
    }
  }
};

struct Add {
  template <class V> __device__ __forceinline__ V operator()(V a, V b) const { return a + b; }
};
// Passes over NaN, which reaches the results through the sums.
struct Larger {
  template <class V> __device__ __forceinline__ V operator()(V a, V b) const {
    return where(lt(a, b), b, a);
  }
};

// What the lanes of a row have, combined: K results at once, the same bits in each lane. All
// threads of the block take part.
template <int K, class V, class C> BRRR_VX void across(V (&a)[K], C combine) {
#pragma unroll
  for (int d = (kLanes < 32 ? kLanes : 32) / 2; d > 0; d /= 2) {
#pragma unroll
    for (int k = 0; k < K; ++k) a[k] = combine(a[k], V(shuffle_xor(a[k].v, d)));
  }
  if constexpr (kLanes > 32) {
    constexpr int warps = kLanes > 32 ? kLanes / 32 : 1;  // NVRTC looks at what is not taken, too.
    __shared__ decltype(V::v) partial[K][warps];
    __syncthreads();  // The last use of `partial` is over.
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) partial[k][threadIdx.x / 32] = a[k].v;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      a[k] = V(partial[k][threadIdx.x % warps]);
#pragma unroll
      for (int d = warps / 2; d > 0; d /= 2) a[k] = combine(a[k], V(shuffle_xor(a[k].v, d)));
    }
  }
}
template <class V, class C> BRRR_VX V across(V x, C combine) {
  V a[1] = {x};
  across(a, combine);
  return a[0];
}
// The sum of f(i, k), a group, over a row.
template <class F> BRRR_VX TCV sum_groups(long n, F f) {
  TCV sum{};
  for_groups(n, [&](long i, int k) {
    const Group g = f(i, k);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) sum = sum + g.v[u];
  });
  return across(sum, Add{});
}

// max(x) and sum(exp(x - max)) of a row. With `exps` the row held becomes exp(x - max).
struct MaxSum {
  TCV max, sum;
};
template <bool exps> BRRR_VX MaxSum max_and_sum(Operand& x, long n) {
  const TCV lowest = splat((TC)-infinity);
  TCV max = lowest, sum{};
  if constexpr (kHeld > 0) {
    for_groups(n, [&](long, int k) {
#pragma unroll
      for (int u = 0; u < kGroup; ++u) max = Larger{}(max, x.held[k].v[u]);
    });
    max = across(max, Larger{});
    for_groups(n, [&](long, int k) {
#pragma unroll
      for (int u = 0; u < kGroup; ++u) {
        const TCV e = exp(x.held[k].v[u] - max);
        if (exps) x.held[k].v[u] = e;
        sum = sum + e;
      }
    });
    return {max, across(sum, Add{})};
  } else {
    // One pass: the sum so far is scaled whenever the maximum so far grows. While that is -inf,
    // 0 stands for it, as -inf less -inf is not 0.
    const auto shift = [&](TCV m) { return where(eq(m, lowest), TCV{}, m); };
    for_groups(n, [&](long i, int) {
      const Group g = load_group(x.x + i);
      TCV top = max;
#pragma unroll
      for (int u = 0; u < kGroup; ++u) top = Larger{}(top, g.v[u]);
      const TCV by = shift(top);
      if (all(gt(top, max))) sum = sum * exp(max - by);
#pragma unroll
      for (int u = 0; u < kGroup; ++u) sum = sum + exp(g.v[u] - by);
      max = top;
    });
    const TCV top = across(max, Larger{});
    sum = across(sum * exp(max - shift(top)), Add{});
    // All -inf: as above, NaN.
    return {top, where(eq(top, lowest), top - top, sum)};
  }
}
)";

/// kRowText followed by a kernel's own.
template <size_t n> constexpr auto row_text(const char (&own)[n]) {
  std::array<char, sizeof kRowText - 1 + n> text{};
  std::copy_n(kRowText, sizeof kRowText - 1, text.begin());
  std::copy_n(own, n, text.begin() + sizeof kRowText - 1);
  return text;
}

/// A kernel for rows of every length: what differs is the threads of a block.
struct RowKernel {
  DeviceKernel narrow, wide;
};
constexpr RowKernel row_kernel(const char* name, const char* structs, const char* text) {
  return {{name, structs, 256, text}, {name, structs, 1024, text}};
}

/// How the threads share out rows of n elements of a dtype.
struct RowForm {
  int log_group = 0, log_lanes = 0;
  int held = 0;  ///< Groups of a lane that stay in registers, rounded up; 0: rows are read again.

  RowForm(int64_t n, DType t) {
    constexpr int64_t kLongestHeld = 16384;
    while (2 << log_group <= 16 / static_cast<int>(itemsize(t)) && n % (2 << log_group) == 0) {
      ++log_group;
    }
    log_lanes = n <= 8 ? 0 : n <= 64 ? 3 : n <= 1024 ? 5 : n <= 8192 ? 8 : 10;
    if (n > kLongestHeld) return;
    for (held = 1; int64_t{held} << (log_group + log_lanes) < n;) held *= 2;
  }
  int bits(int flags) const { return log_group | log_lanes << 2 | held << 6 | flags << 12; }
  int64_t blocks(int64_t rows) const {
    return log_lanes > 8 ? rows : blocks_for(rows, 256 >> log_lanes);
  }
};

/// Queues the kernel for `rows` rows of n elements of dtype t. `flags` is kFlags in the text.
template <class Arguments>
void run_rows(const RowKernel& k, int64_t rows, int64_t n, DType t, DType u, int flags,
              const Arguments& a) {
  const RowForm form(n, t);
  run_kernel(form.log_lanes > 8 ? k.wide : k.narrow, {.t = t, .u = u, .n = form.bits(flags)},
             {form.blocks(rows)}, a);
}

/// Rows in memory as the kernels read them: dense, from an address that is a multiple of 16, in
/// their own dtype `t` or converted to it.
class RowInput : public DenseInput {
 public:
  RowInput(const TensorImpl* t, DType dtype) : DenseInput(t, dtype, 16) {}
  const char* data() const { return as<char>(); }
};

/// The dtype in which rows a, and b unless it is null, are both read: their own if they have the
/// same, else the compute type of a's.
inline DType common_dtype(const TensorImpl& a, const TensorImpl* b) {
  return !b || a.dtype == b->dtype ? a.dtype : compute_type(a.dtype);
}

}  // namespace brrr
