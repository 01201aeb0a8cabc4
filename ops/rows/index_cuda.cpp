// The kernels of index.cpp on a GPU.
//
// THE SUMS use no atomics: the thread of an element's first term adds all of its terms, in index
// order, as the CPU does. In short lists of positions each term is compared with all others; longer
// lists are sorted by (position, order) first, so that the terms of an element are adjacent. One
// thread sums all terms of an element, however many there are.
#include "ops/rows/index_kernels.h"
#include "ops/rows/library_kernels.h"
#include "ops/rows/order.h"

namespace brrr {

namespace {

constexpr int64_t kMaxSearched = 64;  // Length of lists that are searched rather than sorted.
constexpr int kLongIndices = 1 << 8, kWideEntries = 1 << 9;  // Bits of N, see below.

// Strides of a Walk are in units here: elements, or packs of several where slices are contiguous.
// Its list is the index, or sorted entries.
//
// N: the low 8 bits are the bytes (pick) or elements (sums) of a unit, bit 8 says whether unit
// indices need 64 bits, bit 9 whether entries are wide.
constexpr char kPlaceText[] = R"(
template <bool> struct NumberOf { using type = unsigned; };
template <> struct NumberOf<true> { using type = unsigned long; };
using Number = NumberOf<(N & 256) != 0>::type;

// Offsets for unit i of the small tensor, without its coordinate `at` along the indexed dim.
struct Place {
  long big, small, list, at;
};
BRRR_VX Place place(const Walk& p, Number i) {
  Place q = {0, 0, 0, 0};
  for (int d = p.ndim - 1; d >= 0; --d) {
    const Number size = (Number)p.size[d], rest = d ? i / size : 0;
    const long at = (long)(i - rest * size);
    i = rest;
    if (d == p.dim) {
      q.at = at;
    } else {
      q.big += at * p.big[d];
      q.small += at * p.small[d];
      q.list += at * p.index[d];
    }
  }
  return q;
}
)";

constexpr DeviceKernel pick_kernel{"pick", WalkText, 256, {kUnitText, kPlaceText, R"(
using Unit = UnitOf<N & 255>::type;

EACH_KERNEL(pick, Walk, 256, i, p.n) {
  const Place q = place(p, (Number)i);
  const long k = p.at[q.list + q.at * p.index[p.dim]];
  Unit x = {};
  if (in_range(p.fault, k, p.limit, p.op)) x = ((const Unit*)p.big_data)[q.big + k * p.big[p.dim]];
  ((Unit*)p.small_data)[q.small + q.at * p.small[p.dim]] = x;
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

constexpr DeviceKernel add_few_kernel{"add_few", WalkText, 256, {kPlaceText, kUnitSumText, R"(
EACH_KERNEL(add_few, Walk, 256, i, p.n) {
  const Place q = place(p, (Number)i);
  const long* list = p.at + q.list;
  const long count = p.size[p.dim], step = p.index[p.dim];
  const long k = list[q.at * step];
  if (!in_range(p.fault, k, p.limit, p.op)) return;
  for (long j = 0; j < q.at; ++j) {
    if (list[j * step] == k) return;
  }
  Unit* to = (Unit*)p.big_data + q.big + k * p.big[p.dim];
  const Unit* from = (const Unit*)p.small_data + q.small;
  Sum sum = sum_from(to);
  for (long j = q.at; j < count; ++j) {
    if (list[j * step] == k) add(sum, from[j * p.small[p.dim]]);
  }
  put_sum(to, sum);
}
)"}};

// Positions out of range, recorded when the entries were made, sort last.
constexpr DeviceKernel add_sorted_kernel{
    "add_sorted", WalkText, 256, {kEntryText, kPlaceText, kUnitSumText, R"(
using Entry = EntryOf<(N & 512) != 0>::type;
EACH_KERNEL(add_sorted, Walk, 256, i, p.n) {
  const Place q = place(p, (Number)i);
  const Entry* list = (const Entry*)p.at + q.list;
  const long k = (long)key_of(list[q.at]);
  if (k >= p.limit || (q.at > 0 && (long)key_of(list[q.at - 1]) == k)) return;
  Unit* to = (Unit*)p.big_data + q.big + k * p.big[p.dim];
  const Unit* from = (const Unit*)p.small_data + q.small;
  const long count = p.size[p.dim], step = p.small[p.dim];
  Sum sum = sum_from(to);
  int found = 4;
  for (long j = q.at; found == 4; j += 4) {
    Unit x[4] = {};  // Independent loads, to hide their latency.
    found = 0;
    for (int u = 0; u < 4; ++u) {
      if (found < u || j + u >= count || (long)key_of(list[j + u]) != k) continue;
      x[u] = from[position_of(list[j + u]) * step];
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

// Makes entries of the lists of positions, each of `count` at a stride of `inner`. N: entries are
// wide. If `to` is null, for slices without elements, only records positions out of range.
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

// Elements of the largest unit, 16 bytes at most, into which both tensors divide: more than one
// only if whole slices of contiguous elements are moved.
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

Walk in_units(const OpCall& c, Walk w, int64_t unit, const TensorImpl& big,
              const TensorImpl& small) {
  const int last = w.ndim - 1;
  w.size[last] /= unit;
  for (int d = 0; d < last; ++d) w.big[d] /= unit, w.small[d] /= unit;
  w.big_data = big.data();
  w.small_data = small.data();
  w.fault = device_fault();
  w.op = fault_op(c);
  w.n = small.numel / unit;
  w.limit = big.ndim ? big.sizes[dim_of(c.attrs)] : 1;
  return w;
}

// Records positions out of range; makes entries of the lists unless `to` is null.
void make_entries(const Walk& w, int64_t n, char* to, bool wide) {
  run_kernel(entries_kernel, {.n = wide}, {blocks_for(n)},
             EntryArguments{reinterpret_cast<const char*>(w.at), to, w.fault, w.op, n, w.limit,
                            w.size[w.dim], w.index[w.dim]});
}

int long_indices(const Walk& w) { return w.n >> 32 ? kLongIndices : 0; }

// Sorts each list of the index into entries, which `w` then walks instead of the index.
Tensor sorted(Walk& w, const TensorImpl& index, bool wide) {
  const int64_t count = w.size[w.dim];
  const Tensor entries = entry_rows(wide, index.numel / count, count, index.device);
  make_entries(w, index.numel, entries.impl()->data(), wide);
  Tensor order = sort_entries(entries, count);
  w.at = reinterpret_cast<const long*>(order.impl()->data());
  w.index[w.dim] = 1;
  // Lists are contiguous now: strides of inner dims gain their length; those of outer dims have it.
  for (int d = w.dim + 1; d < w.ndim; ++d) w.index[d] *= count;
  return order;
}

}  // namespace

void pick_cuda(const OpCall& c, const Walk& walk) {
  const TensorImpl &x = *c.in[0], &out = *c.out[0].impl();
  const int64_t unit = unit_of(walk, x, out);
  const Walk w = in_units(c, walk, unit, x, out);
  if (w.n == 0) return make_entries(w, c.in[1]->numel, nullptr, false);
  const auto bytes = static_cast<int>(unit * static_cast<int64_t>(itemsize(x.dtype)));
  run_kernel(pick_kernel, {.n = bytes | long_indices(w)}, {blocks_for(w.n)}, w);
}

void add_cuda(const OpCall& c, const Walk& walk, const TensorImpl& src) {
  const TensorImpl& out = *c.out[0].impl();
  const int64_t unit = unit_of(walk, out, src);
  Walk w = in_units(c, walk, unit, out, src);
  if (w.n == 0) return make_entries(w, c.in[1]->numel, nullptr, false);
  Variant v{.t = out.dtype, .n = static_cast<int>(unit) | long_indices(w)};
  const int64_t count = w.size[w.dim];
  if (count <= kMaxSearched) return run_kernel(add_few_kernel, v, {blocks_for(w.n)}, w);
  const bool wide = w.limit >> 32 || count >> 32;
  const Tensor order = sorted(w, *c.in[1], wide);
  if (wide) v.n |= kWideEntries;
  run_kernel(add_sorted_kernel, v, {blocks_for(w.n)}, w);
}

}  // namespace brrr
