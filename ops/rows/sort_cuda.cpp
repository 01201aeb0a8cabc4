// Sorting on a GPU. As on the CPU no two entries are equal, so every correct algorithm gives the
// same bits; a stable sort by index is a sort of (index, position).
//
// ALGORITHM: blocks sort tiles of 2048 entries in shared memory (bitonic: at most 66 compare and
// exchange steps with a barrier between them), then sorted runs are merged pairwise, each thread
// taking 8 entries of the result from where the merge path crosses its diagonal (Odeh, Green,
// Mwassi, Shmueli and Birk, "Merge path", 2012).
//
// Where it is little work, a rank sort instead: each entry counts the entries before it.
//
// COST: a row of n entries is read and written 1 + ceil(log2(n / 2048)) times, one kernel each: 10
// times for a million, where a radix sort of 32-bit keys takes 4 passes of three kernels. The k
// smallest cost little more than one pass over the row, because runs are truncated to k entries.
#include <bit>

#include "ops/kinds/row_kernel.h"
#include "ops/rows/order.h"

namespace brrr {

namespace {

constexpr int64_t kTile = 2048;  // Entries that a block sorts or merges.
// A block ranks kRanked entries, in rows of at most kLongestRanked, if that takes no more than
// kMostComparisons in all: tiles are slower for their barriers. A row of fewer than kLeastCompared
// entries takes a block as long as one of kLeastCompared, for barriers of its own.
constexpr int64_t kRanked = 32;
constexpr int64_t kLongestRanked = 4096, kMostComparisons = int64_t{1} << 24, kLeastCompared = 256;

// Sorted runs of `width` entries each in rows of n, of which only the first k of a run are kept
// (the last run of a row may be shorter). `out`, if not null, takes the positions instead of `to`.
BRRR_DEVICE_STRUCT(SortArguments, {
  const char* from;
  char *to, *out;
  long rows, n, k, width;
});

// N: entries are wide.
constexpr char kSortText[] = R"(
using Entry = EntryOf<N != 0>::type;
BRRR_VX void put_entry(const SortArguments& p, long i, Entry e) {
  if (p.out)
    ((long*)p.out)[i] = position_of(e);
  else
    ((Entry*)p.to)[i] = e;
}
)";

// Eight adjacent threads rank an entry, each against an eighth of the row.
constexpr DeviceKernel rank_kernel{"sort_ranks", SortArgumentsText, 256, {kEntryText, kSortText, R"(
BLOCK_KERNEL(sort_ranks, SortArguments, 256) {
  __shared__ Entry part[2048];
  const int lane = threadIdx.x % 8;
  const long blocks = (p.n + 31) / 32, row = blockIdx.x / blocks;
  const long at = blockIdx.x % blocks * 32 + threadIdx.x / 8;
  const Entry* const from = (const Entry*)p.from + row * p.n;
  const Entry mine = from[at < p.n ? at : 0];
  int rank = 0;
  for (long begin = 0; begin < p.n; begin += 2048) {
    const int n = (int)(p.n - begin < 2048 ? p.n - begin : 2048);
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += 256) part[i] = from[begin + i];
    __syncthreads();
#pragma unroll 8
    for (int i = lane; i < n; i += 8) rank += before(part[i], mine);
  }
#pragma unroll
  for (int d = 1; d < 8; d *= 2) rank += shuffle_xor(rank, d);
  if (lane == 0 && at < p.n && rank < p.k) put_entry(p, row * p.k + rank, mine);
}
)"}};

// `width` is a power of two up to 2048: a block sorts 2048 / width runs.
constexpr DeviceKernel tile_kernel{"sort_tiles", SortArgumentsText, 256, {kEntryText, kSortText, R"(
BLOCK_KERNEL(sort_tiles, SortArguments, 256) {
  __shared__ Entry tile[2048];
  const int width = (int)p.width;
  const long runs = (p.n + width - 1) / width, first = (long)blockIdx.x * (2048 / width);
  for (int i = threadIdx.x; i < 2048; i += 256) {
    const long row = (first + i / width) / runs;
    const long at = (first + i / width) % runs * width + i % width;
    set_entry(tile[i], ~0ul, 0x7fffffffffffffff);  // After all others.
    if (row < p.rows && at < p.n) tile[i] = ((const Entry*)p.from)[row * p.n + at];
  }
  for (int size = 2; size <= width; size *= 2) {
    for (int gap = size / 2; gap > 0; gap /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < 1024; i += 256) {
        const int low = 2 * i - (i & (gap - 1)), high = low + gap;
        const bool falling = size < width && (low & size) != 0;
        const Entry a = tile[low], b = tile[high];
        if (before(b, a) != falling) {
          tile[low] = b;
          tile[high] = a;
        }
      }
    }
  }
  __syncthreads();
  const long room = p.k < width ? p.k : width;
  for (int i = threadIdx.x; i < 2048; i += 256) {
    const long run = first + i / width, at = run % runs * width + i % width;
    if (run / runs < p.rows && at < p.n && i % width < room) {
      put_entry(p, run * room + i % width, tile[i]);
    }
  }
}
)"}};

// A block writes 2048 entries of a merged run.
constexpr DeviceKernel merge_kernel{
    "merge_runs", SortArgumentsText, 256, {kEntryText, kSortText, R"(
// How many of the first `count` entries of the merged run come from a.
BRRR_VX long split(const Entry* a, long n_a, const Entry* b, long n_b, long count) {
  long low = count > n_b ? count - n_b : 0, high = count < n_a ? count : n_a;
  while (low < high) {
    const long middle = (low + high) / 2;
    if (before(a[middle], b[count - 1 - middle]))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
BRRR_VX long least(long a, long b) { return a < b ? a : b; }
// Entries in run `run` of a row.
BRRR_VX long length_of(const SortArguments& p, long run) {
  const long left = p.n - run * p.width;
  return left <= 0 ? 0 : least(left, least(p.width, p.k));
}
BLOCK_KERNEL(merge_runs, SortArguments, 256) {
  __shared__ Entry part[2048];
  const long runs = (p.n + p.width - 1) / p.width, merged = (runs + 1) / 2;
  const long room = least(p.width, p.k), merged_room = least(2 * p.width, p.k);
  const long blocks = (merged_room + 2047) / 2048, result = blockIdx.x / blocks;
  const long row = result / merged, run = result % merged * 2;
  const long n_a = length_of(p, run), n_b = length_of(p, run + 1), all = least(n_a + n_b, p.k);
  const long begin = blockIdx.x % blocks * 2048, end = least(begin + 2048, all);
  if (begin >= end) return;

  const Entry* a = (const Entry*)p.from + (row * runs + run) * room;
  const Entry* b = a + room;
  const long a0 = split(a, n_a, b, n_b, begin), a1 = split(a, n_a, b, n_b, end);
  const int n = (int)(end - begin), left = (int)(a1 - a0);
  for (int i = threadIdx.x; i < n; i += 256) {
    part[i] = i < left ? a[a0 + i] : b[begin - a0 + i - left];
  }
  __syncthreads();
  const int first = threadIdx.x * 8;
  if (first >= n) return;
  int i = (int)split(part, left, part + left, n - left, first), j = left + first - i;
  for (int at = first; at < n && at < first + 8; ++at) {
    const bool from_a = j >= n || (i < left && before(part[i], part[j]));
    put_entry(p, result * merged_room + begin + at, part[from_a ? i++ : j++]);
  }
}
)"}};

BRRR_DEVICE_STRUCT(OrderArguments, {
  const char* x;
  char* to;
  long n, columns;
});

// N: 1 for wide entries, plus 2 for descending order.
constexpr DeviceKernel keys_kernel{
    "order_entries", OrderArgumentsText, 256, {kEntryText, OrderKeyText, R"(
EACH_KERNEL(order_entries, OrderArguments, 256, i, p.n) {
  const auto key = order_key(get((const T*)p.x + i)[0]);
  set_entry(((EntryOf<(N & 1) != 0>::type*)p.to)[i], N & 2 ? ~key : key, i % p.columns);
}
)"}};

}  // namespace

Tensor sort_entries(const Tensor& entries, int64_t k, char* positions) {
  const TensorImpl& e = *entries.impl();
  const int64_t rows = e.sizes[0], n = e.sizes[1];
  const bool wide = e.sizes[2] == 2;
  const Variant v{.n = wide};
  Tensor from = entries, to;
  SortArguments a{e.data(), nullptr, nullptr, rows, n, k, 0};
  // Allocates runs of `width`; none in the last pass if only positions are wanted.
  const auto allocate = [&](int64_t width) {
    a.out = width >= n ? positions : nullptr;
    if (a.out) return;
    to = entry_rows(wide, rows * blocks_for(n, width), std::min(width, k), e.device);
    a.to = to.impl()->data();
  };
  const int64_t blocks = rows * blocks_for(n, kRanked);
  if (n <= kLongestRanked && blocks * kRanked * std::max(n, kLeastCompared) <= kMostComparisons) {
    allocate(n);
    run_kernel(rank_kernel, v, {blocks}, a);
    return to;
  }
  a.width = std::min(kTile, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))));
  allocate(a.width);
  run_kernel(tile_kernel, v, {blocks_for(rows * blocks_for(n, a.width), kTile / a.width)}, a);
  for (; a.width < n; a.width *= 2) {
    from = std::move(to);
    a.from = from.impl()->data();
    allocate(2 * a.width);
    const int64_t merged = rows * blocks_for(n, 2 * a.width);
    run_kernel(merge_kernel, v, {merged * blocks_for(std::min(2 * a.width, k), kTile)}, a);
  }
  return to;
}

void order_cuda(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const DenseInput dense(&x, x.dtype);
  const int64_t n = x.ndim ? x.sizes[x.ndim - 1] : 1, rows = x.numel / n;
  const bool wide = itemsize(compute_type(x.dtype)) == 8 || n > int64_t{1} << 32;
  const Tensor entries = entry_rows(wide, rows, n, x.device);
  const OrderArguments a{dense.as<char>(), entries.impl()->data(), x.numel, n};
  run_kernel(keys_kernel,
             {.t = x.dtype, .n = wide + 2 * (c.attrs.as<OrderAttrs>().descending != 0)},
             {blocks_for(x.numel)}, a);
  sort_entries(entries, y.numel / rows, y.data());
}

}  // namespace brrr
