// Reading and adding at positions that a tensor names, on a GPU.
//
// THE SUMS take no atomics: the thread of the first term that goes to an element adds all of them,
// in index order, as the CPU does. Short lists of positions are searched for equal ones, each term
// against all others; longer ones are sorted by (position, order) before, so that the terms of an
// element lie side by side. One element that receives all of many terms is summed by one thread.
#include "ops/rows/index_kernels.h"
#include "ops/rows/library_kernels.h"
#include "ops/rows/order.h"

namespace brrr {

namespace {

constexpr int64_t kFew = 64;  // Positions that are searched rather than sorted.
constexpr int kLongNumbers = 1 << 8, kWideEntries = 1 << 9;  // Bits of N, see below.

// A Walk. Strides count units: elements, or several where a slice's elements lie side by side.
// `list` is the index, or sorted entries; it has `count` positions along the indexed dim.
BRRR_DEVICE_STRUCT(WalkArguments, {
  char *big, *small;
  const char* list;
  char* fault;
  long op, n, limit, count, big_step, small_step, list_step;
  int ndim, dim;
  long size[8], big_stride[8], small_stride[8], list_stride[8];
});
static_assert(kMaxDims == 8);

// N: the low bits are the bytes (pick) or elements (sums) of a unit; then whether unit numbers need
// 64 bits, and whether entries are wide.
constexpr char kPlaceText[] = R"(
template <bool> struct NumberOf { using type = unsigned; };
template <> struct NumberOf<true> { using type = unsigned long; };
using Number = NumberOf<(N & 256) != 0>::type;

// Where unit i of the small tensor lies, but for its coordinate along the indexed dim.
struct Place {
  long big, small, list, at;
};
BRRR_VX Place place(const WalkArguments& p, Number i) {
  Place q = {0, 0, 0, 0};
  for (int d = p.ndim - 1; d >= 0; --d) {
    const Number size = (Number)p.size[d], rest = d ? i / size : 0;
    const long at = (long)(i - rest * size);
    i = rest;
    if (d == p.dim) {
      q.at = at;
    } else {
      q.big += at * p.big_stride[d];
      q.small += at * p.small_stride[d];
      q.list += at * p.list_stride[d];
    }
  }
  return q;
}
)";

constexpr DeviceKernel pick_kernel{"pick", WalkArgumentsText, 256, {kUnitText, kPlaceText, R"(
using Unit = UnitOf<N & 255>::type;

EACH_KERNEL(pick, WalkArguments, 256, i, p.n) {
  const Place q = place(p, (Number)i);
  const long k = ((const long*)p.list)[q.list + q.at * p.list_step];
  Unit x = {};
  if (in_range(p.fault, k, p.limit, p.op)) x = ((const Unit*)p.big)[q.big + k * p.big_step];
  ((Unit*)p.small)[q.small + q.at * p.small_step] = x;
}
)"}};

constexpr char kUnitSumText[] = R"(
constexpr int width = N & 255;
using Unit = Pack<T, width>;
// 16-bit floats are summed in float32 and rounded once.
struct Sum {
  TCV v[width];
};
BRRR_VX Sum sum_from(const Unit* from) {
  const Unit x = *from;
  Sum s;
  for (int u = 0; u < width; ++u) s.v[u] = get(&x.v[u]);
  return s;
}
BRRR_VX void add(Sum& s, const Unit& x) {
  for (int u = 0; u < width; ++u) s.v[u] += get(&x.v[u]);
}
BRRR_VX void put_sum(Unit* to, const Sum& s) {
  Unit x;
  for (int u = 0; u < width; ++u) put(&x.v[u], s.v[u]);
  *to = x;
}
)";

constexpr DeviceKernel add_few_kernel{
    "add_few", WalkArgumentsText, 256, {kPlaceText, kUnitSumText, R"(
EACH_KERNEL(add_few, WalkArguments, 256, i, p.n) {
  const Place q = place(p, (Number)i);
  const long* list = (const long*)p.list + q.list;
  const long k = list[q.at * p.list_step];
  if (!in_range(p.fault, k, p.limit, p.op)) return;
  for (long j = 0; j < q.at; ++j) {
    if (list[j * p.list_step] == k) return;
  }
  Unit* to = (Unit*)p.big + q.big + k * p.big_step;
  const Unit* from = (const Unit*)p.small + q.small;
  Sum sum = sum_from(to);
  for (long j = q.at; j < p.count; ++j) {
    if (list[j * p.list_step] == k) add(sum, from[j * p.small_step]);
  }
  put_sum(to, sum);
}
)"}};

// Positions out of range have been noted; they lie last.
constexpr DeviceKernel add_sorted_kernel{
    "add_sorted", WalkArgumentsText, 256, {kEntryText, kPlaceText, kUnitSumText, R"(
using Entry = EntryOf<(N & 512) != 0>::type;
EACH_KERNEL(add_sorted, WalkArguments, 256, i, p.n) {
  const Place q = place(p, (Number)i);
  const Entry* list = (const Entry*)p.list + q.list;
  const long k = (long)key_of(list[q.at]);
  if (k >= p.limit || (q.at > 0 && (long)key_of(list[q.at - 1]) == k)) return;
  Unit* to = (Unit*)p.big + q.big + k * p.big_step;
  const Unit* from = (const Unit*)p.small + q.small;
  Sum sum = sum_from(to);
  int found = 4;
  for (long j = q.at; found == 4; j += 4) {
    Unit x[4] = {};  // Loads that do not wait for each other.
    found = 0;
    for (int u = 0; u < 4; ++u) {
      if (found < u || j + u >= p.count || (long)key_of(list[j + u]) != k) continue;
      x[u] = from[position_of(list[j + u]) * p.small_step];
      found = u + 1;
    }
    for (int u = 0; u < 4; ++u) {
      if (u < found) add(sum, x[u]);
    }
  }
  put_sum(to, sum);
}
)"}};

BRRR_DEVICE_STRUCT(EntryArguments, {
  const char* index;
  char *to, *fault;
  long op, n, limit, count, inner;
});

// The lists of positions, each of `count` that lie `inner` apart, as entries. N: wide ones. Without
// room for them, of slices without elements, positions out of range are noted all the same.
constexpr DeviceKernel entries_kernel{"index_entries", EntryArgumentsText, 256, {kEntryText, R"(
EACH_KERNEL(index_entries, EntryArguments, 256, i, p.n) {
  long k = ((const long*)p.index)[i];
  if (!in_range(p.fault, k, p.limit, p.op)) k = p.limit;
  if (!p.to) return;
  const long line = i / (p.count * p.inner) * p.inner + i % p.inner;
  const long at = i / p.inner % p.count;
  set_entry(((EntryOf<N != 0>::type*)p.to)[line * p.count + at], (unsigned long)k, at);
}
)"}};

// --- calls ---------------------------------------------------------------------------------------

// Elements of the largest unit, 16 bytes at most, that both tensors consist of: several only where
// slices are picked whose elements lie side by side.
int64_t unit_of(const Walk& w, const TensorImpl& big, const TensorImpl& small) {
  const int last = w.ndim - 1;
  if (w.dim == last || w.index[last] != 0 || w.big[last] != 1 || w.small[last] != 1) return 1;
  const auto bytes = static_cast<int64_t>(itemsize(big.dtype));
  int64_t lengths = w.size[last];
  for (int d = 0; d < last; ++d) lengths |= w.big[d] | w.small[d];
  const auto bits = static_cast<uint64_t>(lengths * bytes) | 16;
  return common_unit(bits | reinterpret_cast<uint64_t>(big.data()) |
                     reinterpret_cast<uint64_t>(small.data())) /
         bytes;
}

WalkArguments arguments(const OpCall& c, const Walk& w, int64_t unit, const TensorImpl& big,
                        const TensorImpl& small) {
  WalkArguments a{};
  a.big = big.data();
  a.small = small.data();
  a.list = reinterpret_cast<const char*>(w.at);
  a.fault = device_fault();
  a.op = fault_op(c);
  a.n = small.numel / unit;
  a.limit = big.ndim ? big.sizes[dim_of(c.attrs)] : 1;
  a.count = w.size[w.dim];
  a.ndim = w.ndim;
  a.dim = w.dim;
  const auto units = [&](int d, int64_t stride) {
    return d == w.ndim - 1 ? stride : stride / unit;
  };
  for (int d = 0; d < w.ndim; ++d) {
    a.size[d] = d == w.ndim - 1 ? w.size[d] / unit : w.size[d];
    a.big_stride[d] = units(d, w.big[d]);
    a.small_stride[d] = units(d, w.small[d]);
    a.list_stride[d] = w.index[d];
  }
  a.big_step = a.big_stride[w.dim];
  a.small_step = a.small_stride[w.dim];
  a.list_step = a.list_stride[w.dim];
  return a;
}

void note_positions(const WalkArguments& a, int64_t n) {
  run_kernel(entries_kernel, {}, {blocks_for(n)},
             EntryArguments{a.list, nullptr, a.fault, a.op, n, a.limit, 0, 0});
}

int long_numbers(const WalkArguments& a) { return a.n >> 32 ? kLongNumbers : 0; }

// The index' positions in order; makes `a` walk them instead.
Tensor sorted(WalkArguments& a, const Walk& w, const TensorImpl& index, bool wide) {
  const Tensor entries = entry_rows(wide, index.numel / a.count, a.count, index.device);
  run_kernel(entries_kernel, {.n = wide}, {blocks_for(index.numel)},
             EntryArguments{a.list, entries.impl()->data(), a.fault, a.op, index.numel, a.limit,
                            a.count, a.list_step});
  Tensor order = sort_entries(entries, a.count);
  a.list = order.impl()->data();
  a.list_step = 1;
  // Dims outside the indexed one have strides with its size in them; now all count whole lists.
  for (int d = w.dim + 1; d < w.ndim; ++d) a.list_stride[d] *= a.count;
  return order;
}

}  // namespace

void pick_cuda(const OpCall& c, const Walk& w) {
  const TensorImpl &x = *c.in[0], &out = *c.out[0].impl();
  const int64_t unit = unit_of(w, x, out);
  const WalkArguments a = arguments(c, w, unit, x, out);
  if (a.n == 0) return note_positions(a, c.in[1]->numel);
  const auto bytes = static_cast<int>(unit * static_cast<int64_t>(itemsize(x.dtype)));
  run_kernel(pick_kernel, {.n = bytes | long_numbers(a)}, {blocks_for(a.n)}, a);
}

void add_cuda(const OpCall& c, const Walk& w, const TensorImpl& src) {
  const TensorImpl& out = *c.out[0].impl();
  const int64_t unit = unit_of(w, out, src);
  WalkArguments a = arguments(c, w, unit, out, src);
  if (a.n == 0) return note_positions(a, c.in[1]->numel);
  Variant v{.t = out.dtype, .n = static_cast<int>(unit) | long_numbers(a)};
  if (a.count <= kFew) return run_kernel(add_few_kernel, v, {blocks_for(a.n)}, a);
  const bool wide = a.limit >> 32 || a.count >> 32;
  const Tensor order = sorted(a, w, *c.in[1], wide);
  if (wide) v.n |= kWideEntries;
  run_kernel(add_sorted_kernel, v, {blocks_for(a.n)}, a);
}

}  // namespace brrr
