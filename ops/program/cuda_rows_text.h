#pragma once
// Kernels of row ops on a GPU: the text that they share, and how their threads are laid out.
//
// THE ORDER within a row is a function of its length n and dtype only. The row is cut into groups
// of `group` neighbours, the largest power of two that divides n and fills 16 bytes at most. Group
// k belongs to lane k % lanes, which combines its elements by increasing index. The lanes' results
// are combined by a butterfly over each warp (distances 16, 8, ... 1), then by one over the warps.

#include "core/device_kernel.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

/// Before each of these kernels' own text, behind kOperands, the most operands of elements that one
/// of them reads; Variant::n is RowForm::bits().
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
// Where a row begins, and how many elements it has.
BRRR_VX long start_of(const RowArguments& p, long row) {
  return p.chunks > 1 ? row / p.chunks * p.stride + row % p.chunks * p.n : row * p.stride;
}
BRRR_VX long length_of(const RowArguments& p, long row) {
  if (row >= p.rows) return 0;
  const long left = p.chunks > 1 ? p.length - row % p.chunks * p.n : p.n;
  return left < p.n ? left : p.n;
}

// Where a group is one element of 16 bits, memory is read kPiece elements at a time, through shared
// memory: the lanes keep their elements. Rows that are read again and again have a block each.
constexpr bool kStaged = sizeof(T) == 2 && kGroup == 1 && (kHeld > 0 || kRows == 1);
constexpr int kPiece = 16 / sizeof(T);
typedef Pack<T, kPiece> Piece;

// How many elements behind a multiple of 16 bytes p lies. Pieces are counted from there.
BRRR_VX int shift_of(const T* p) {
  return (int)((unsigned long)p % 16 / sizeof(T));
}
// Elements q ... of the n from p on, q being counted from that multiple; no others are touched.
BRRR_VX Piece load_piece(const T* p, long q, long n) {
  const long i = q - shift_of(p);
  if (i >= 0 && i + kPiece <= n) return *(const Piece*)(p + i);
  Piece piece = {};
#pragma unroll
  for (int u = 0; u < kPiece; ++u) {
    if (i + u >= 0 && i + u < n) piece.v[u] = p[i + u];
  }
  return piece;
}

// A row that is read once and stays in registers; where it is too long for that, read each time.
// Rows that stay there lie one after the other. All threads of the block take part; n is 0 for those
// that want nothing of it.
struct Operand {
  const T* x;
  Group held[kHeld > 0 ? kHeld : 1];
  T* stage;    // What for_groups has of a long row,
  Piece next;  // and this thread's part of what comes after it.
  template <class P> __device__ __forceinline__ Operand(const P& p, const char* from, long n)
      : x((const T*)from + start_of(p, this_row())) {
    if constexpr (kHeld > 0 && kStaged) {
      __shared__ __attribute__((aligned(16))) T all[kThreads * kHeld + kPiece];
      const long first = (long)blockIdx.x * kRows * p.n, left = p.rows * p.n - first;
      const T* rows = (const T*)from + first;
      const int shift = shift_of(rows), most = kRows * p.n, count = left < most ? left : most;
      constexpr int pieces = kHeld / kPiece + 1;
      Piece part[pieces];
#pragma unroll
      for (int k = 0; k < pieces; ++k) {
        part[k] = load_piece(rows, (k * kThreads + threadIdx.x) * kPiece, count);
      }
      __syncthreads();  // The last use of `all` is over.
#pragma unroll
      for (int k = 0; k < pieces; ++k) {
        const int q = (k * kThreads + threadIdx.x) * kPiece;
        if (q < count + shift) *(Piece*)(all + q) = part[k];
      }
      __syncthreads();
      const T* own = all + shift + threadIdx.x / kLanes * (int)p.n;
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int i = k * kLanes + lane();
        if (i < n) held[k].v[0] = get(own + i);
      }
    } else if constexpr (kHeld > 0) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int i = (k * kLanes + lane()) * kGroup;
        if (i < n) held[k] = load_group(x + i);
      }
    }
  }
};

// Room for what all passes have of long rows.
BRRR_VX T* stages() {
  __shared__ __attribute__((aligned(16))) T all[kOperands * kLanes * kPiece];
  return all;
}
// How many single elements are asked for before the first is taken.
constexpr int kAhead = kGroup == 1 ? 8 : 1;
// f(i, g...), which may change its copies. No lambda: NVRTC takes generic ones for the host's.
template <class F, class... G> BRRR_VX void give(F& f, long i, G... g) {
  f(i, g...);
}
// f(i, group of each x) for this lane's groups of the row, elements i ... of it, by growing i. All
// threads of the block take part.
template <class F, class... X> BRRR_VX void for_groups(long n, F f, X&... x) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = (k * kLanes + lane()) * kGroup;
      if (i < n) f(i, x.held[k]...);
    }
  } else if constexpr (kStaged) {
    constexpr int each = kLanes * kPiece;
    T* const all = stages();
    int m = 0, shift = 0;  // The rows begin equally far behind multiples of 16 bytes.
    ((x.stage = all + m++ * each, shift = shift_of(x.x)), ...);
    const int mine = lane() * kPiece, own = (lane() + shift) % kLanes;
    ((x.next = load_piece(x.x, mine, n)), ...);
    for (long q = 0; q < n + shift; q += each) {
      __syncthreads();  // The last use of `all` is over.
      ((*(Piece*)(x.stage + mine) = x.next), ...);
      __syncthreads();
      ((x.next = load_piece(x.x, q + each + mine, n)), ...);
      for (int at = own; at < each; at += kLanes) {
        const long i = q + at - shift;
        if (i >= 0 && i < n) give(f, i, Group{{get(x.stage + at)}}...);
      }
    }
  } else {
#pragma unroll kAhead
    for (long i = lane() * kGroup; i < n; i += kLanes * kGroup) {
      give(f, i, load_group(x.x + i)...);
    }
  }
}

// The elements of a piece, all of them read at once.
struct Elements { Group at[kPiece]; };
BRRR_VX Elements elements_of(const T* p) {
  const Piece piece = *(const Piece*)p;
  Elements all;
#pragma unroll
  for (int u = 0; u < kPiece; ++u) all.at[u].v[0] = get(piece.v + u);
  return all;
}
template <class F, class... E> BRRR_VX Piece map_piece(F& f, long i, const E&... in) {
  Piece out;
#pragma unroll
  for (int u = 0; u < kPiece; ++u) put(out.v + u, f(i + u, in.at[u]...).v[0]);
  return out;
}
// to[i] ... = f(i, group of each x) for the row's groups, each by whichever thread suits memory.
template <class F, class... X> BRRR_VX void map_groups(long n, T* to, F f, const X&... x) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = (k * kLanes + lane()) * kGroup;
      if (i < n) store_group(to + i, f(i, x.held[k]...));
    }
  } else if constexpr (kStaged) {
    // Whole pieces, then the elements before and behind them. Each x lies as `to` does.
    const int head = (kPiece - shift_of(to)) % kPiece;
    for (long i = head + lane() * kPiece; i + kPiece <= n; i += kLanes * kPiece) {
      *(Piece*)(to + i) = map_piece(f, i, elements_of(x.x + i)...);
    }
    const long tail = n - (n - head) % kPiece, i = lane() < head ? lane() : tail + lane() - head;
    if (i < n) put(to + i, f(i, Group{{get(x.x + i)}}...).v[0]);
  } else {
    for (long i = lane() * kGroup; i < n; i += kLanes * kGroup) {
      store_group(to + i, f(i, load_group(x.x + i)...));
    }
  }
}

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
)";

/// How the threads share out rows of n elements of a dtype.
struct RowForm {
  int log_group = 0, log_lanes = 0;
  int held = 0;  ///< Groups of a lane that stay in registers, rounded up; 0: rows are read again.

  RowForm() = default;
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

}  // namespace brrr
