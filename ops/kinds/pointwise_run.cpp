// The CPU driver of pointwise rows: strides, broadcasts and dtypes are brought to what a loop
// takes, which is dense runs or splats of one compute type.
#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/pointwise.h"
#include "ops/kinds/pointwise_iteration.h"
#include "ops/kinds/strided_matrix.h"

namespace brrr {

namespace {

constexpr int64_t kTile = 512;       // Elements converted at a time: operands stay in L1.
constexpr int64_t kGrain = 1 << 15;  // Elements worth a thread.
constexpr int kMost = kMostPointwise;

// How the loop sees one operand in the innermost dim. A number is splat once and for all.
enum class Way : uint8_t { Direct, Number, Splat, Tile, Made };

using Buffer = char[kTile * 8];
using Splat = char[vx::lanes * 8];

// The numbers, each n times. A vector is written for each or more, the last one beyond the end.
template <class T> void expand_as(char* to, const char* numbers, int64_t rows, int64_t n) {
  T* p = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(numbers);
  for (int64_t r = 0; r < rows; ++r, p += n) {
    const auto all = vx::splat(x[r]);
    for (int64_t i = 0; i < n; i += vx::lanes) vx::store(p + i, all);
  }
}
void expand(size_t item, char* to, const char* numbers, int64_t rows, int64_t n) {
  const auto all = item == 1   ? expand_as<unsigned char>
                   : item == 2 ? expand_as<unsigned short>
                   : item == 4 ? expand_as<int>
                               : expand_as<long>;
  all(to, numbers, rows, n);
}

void load_splat(DType ct, char* to, DType from, const char* src) {
  if (itemsize(ct) == 2 && from != ct) {  // A number.
    float x;
    load_tile(kFloat32, &x, from, src, 0, 1);
    store_tile(ct, to, 1, kFloat32, &x, 1);
  } else {
    load_tile(ct, to, from, src, 0, 1);
  }
  expand(itemsize(ct), to, to, 1, vx::lanes);
}

// One run along the innermost dim, from the addresses `at`, at most `tile` elements at a time.
void run_inner(const Iteration& it, char* const* at, int64_t n, int64_t tile, const Way* way,
               Buffer* buf) {
  const int inner = it.ndim - 1;
  char* out[kMaxOutputs];
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  vx::Line places[kMost];
  for (int k = it.n_out; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    step[k - it.n_out] = way[k] == Way::Splat || way[k] == Way::Number ? 0 : 1;
    if (way[k] == Way::Splat) load_splat(it.loop_type(k), buf[k], o.dtype, at[k]);
  }
  for (int64_t begin = 0; begin < n; begin += tile) {
    const int64_t m = std::min(tile, n - begin);
    for (int k = 0; k < it.count(); ++k) {
      const PointwiseOperand& o = it.operands[k];
      if (way[k] == Way::Made) {
        const auto& p = *reinterpret_cast<const vx::Line*>(at[k]);
        places[k] = {p.first + begin * p.step, p.step};
        in[k - it.n_out] = reinterpret_cast<const char*>(&places[k]);
        continue;
      }
      char* p = at[k] + begin * o.stride[inner] * o.item();
      if (way[k] == Way::Tile && k >= it.n_out) {
        load_tile(it.loop_type(k), buf[k], o.dtype, p, o.stride[inner], m);
      }
      char* use = way[k] <= Way::Number ? p : buf[k];
      if (k < it.n_out)
        out[k] = use;
      else
        in[k - it.n_out] = use;
    }
    it.loop(out, in, step, m);
    for (int k = 0; k < it.n_out; ++k) {
      if (way[k] != Way::Tile) continue;
      const PointwiseOperand& o = it.operands[k];
      char* p = at[k] + begin * o.stride[inner] * o.item();
      store_tile(o.dtype, p, o.stride[inner], it.loop_type(k), buf[k], m);
    }
  }
}

// How many elements a loop may take at once.
int64_t choose_ways(const Iteration& it, Way* way) {
  const int inner = it.ndim - 1;
  int64_t most = it.size[inner];
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    const bool dense = o.stride[inner] == 1 || it.size[inner] == 1;
    const bool integer = k >= it.n_out && it.info->integers >> (k - it.n_out) & 1;
    way[k] = o.made                                  ? Way::Made
             : integer                               ? Way::Direct
             : o.number                              ? Way::Number
             : k >= it.n_out && o.stride[inner] == 0 ? Way::Splat
             : dense && o.dtype == it.loop_type(k)   ? Way::Direct
                                                     : Way::Tile;
    if (o.made && o.stride[inner] > vx::longest_step) most = 1;
    if (way[k] == Way::Tile) most = std::min(most, kTile);
  }
  return most;
}

// Of an operand that lies across the walk, elements side by side belong to rows one after the
// other. They are read a line of a cache at a time, for as many rows at once; for more where rows
// are short.
constexpr int kMostAcross = 4;

const int64_t* strides_read(const Iteration& it, int k) {
  const PointwiseOperand& o = it.operands[k];
  return k < it.n_out || o.number || o.made ? nullptr : o.stride;
}

// Makes the dim along which an operand lies across the walk the last but one, if there is any.
bool turn_across(Iteration& it) {
  if (it.info->n_made) return false;
  const int dim =
      across_dim(it.ndim, it.size, it.count(), [&](int k) { return strides_read(it, k); });
  if (dim < 0) return false;
  put_last_but_one(it.size, dim, it.ndim);
  for (int k = 0; k < it.count(); ++k) put_last_but_one(it.operands[k].stride, dim, it.ndim);
  return true;
}

// Rows [begin, end) of the outer dims, of each all n elements, some operands lying across them.
void run_across(const Iteration& it, int64_t begin, int64_t end, int64_t n) {
  Way way[kMost];
  choose_ways(it, way);
  const int inner = it.ndim - 1;
  alignas(64) char blocks[kMostAcross][kAcrossBlock * 8];
  const int64_t pitch = std::min(n, kAcrossWidth);
  bool flat = n == pitch, tiles = false;  // A block's rows follow one another in every operand.
  int64_t step[2][kMost];  // In bytes, of each operand: from element to element and row to row.
  char* block[kMost] = {};
  for (int k = 0, used = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    for (int d : {0, 1}) step[d][k] = o.stride[inner - d] * o.item();
    const int64_t* const read = strides_read(it, k);
    if (read && used < kMostAcross && lies_across(it.ndim, it.size, read, inner - 1)) {
      way[k] = Way::Direct;
      block[k] = blocks[used++];
    } else {
      flat &= way[k] == Way::Number || (o.stride[inner] == 1 && o.stride[inner - 1] == n);
      tiles |= way[k] == Way::Tile;
    }
  }
  const int64_t most = (flat && tiles ? kTile : kAcrossBlock) / pitch;
  alignas(64) Buffer buf[kMost];
  PointwiseRows rows(it, begin, 0);
  for (int64_t row = begin, height; row < end; row += height) {
    height = std::min({most, end - row, it.size[inner - 1] - row % it.size[inner - 1]});
    for (int64_t i = 0; i < n; i += kAcrossWidth) {
      const int64_t m = std::min(kAcrossWidth, n - i);
      for (int k = it.n_out; k < it.count(); ++k) {
        const PointwiseOperand& o = it.operands[k];
        if (block[k]) {
          load_across(it.compute, block[k], pitch, o.dtype, rows.at[k] + i * step[0][k],
                      o.stride[inner], height, m);
        }
      }
      const int64_t together = flat ? height * m : m;
      for (int64_t r = 0; r < (flat ? 1 : height); ++r) {
        char* at[kMost];
        for (int k = 0; k < it.count(); ++k) {
          at[k] = block[k] ? block[k] + r * pitch * static_cast<int64_t>(itemsize(it.compute))
                           : rows.at[k] + i * step[0][k] + r * step[1][k];
        }
        run_inner(it, at, together, together, way, buf);
      }
    }
    rows.skip(height);
  }
}

// Rows [begin, end) of the outer dims, of each the n elements of the innermost one from `first` on.
void run_rows(const Iteration& it, int64_t begin, int64_t end, int64_t first, int64_t n) {
  Way way[kMost];
  const int64_t tile = std::min(choose_ways(it, way), n);
  PointwiseRows rows(it, begin, first);
  const auto as_it_is = [](Way w) { return w <= Way::Number || w == Way::Made; };
  if (tile == n && std::all_of(way, way + it.count(), as_it_is)) {
    // The heads of an attention have rows of 16 elements: what happens between rows counts.
    int64_t steps[kMaxOperands];
    for (int k = 0; k < it.n_in; ++k) steps[k] = way[it.n_out + k] != Way::Number;
    for (int64_t row = begin; row < end; ++row, rows.next()) {
      it.loop(rows.at, rows.at + it.n_out, steps, n);
    }
    return;
  }
  alignas(64) Buffer buf[kMost];  // Uninitialised: only touched parts cost.
  for (int64_t row = begin; row < end; ++row, rows.next())
    run_inner(it, rows.at, n, tile, way, buf);
}

// Rows so short that what happens between them counts, one after the other in all that is written:
// many are one run, for which what broadcasts is laid out: a row that they share again and again, a
// number of each as often as it has elements.
constexpr int64_t kShortRow = kTile / 2;
enum class Short : uint8_t { Direct, Number, Tile, Repeated, Expanded };
using Laid = char[(kTile + vx::lanes) * 8];

bool choose_short(const Iteration& it, Short* way) {
  const int inner = it.ndim - 1;
  const int64_t n = it.size[inner];
  if (inner == 0 || n > kShortRow || it.info->integers) return false;
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    const int64_t along = o.stride[inner], down = o.stride[inner - 1];
    const bool flat = along == 1 && down == n;
    if (!flat && (k < it.n_out || (!o.number && along != 0 && (along != 1 || down != 0))))
      return false;
    way[k] = o.number     ? Short::Number
             : flat       ? o.dtype == it.loop_type(k) ? Short::Direct : Short::Tile
             : along == 0 ? Short::Expanded
                          : Short::Repeated;
  }
  return true;
}

// Of operand k, whose first address is `from`, so many rows as the loop takes them.
void lay_out(const Iteration& it, int k, Short way, const char* from, char* to, int64_t rows) {
  const PointwiseOperand& o = it.operands[k];
  const DType t = it.loop_type(k);
  const int inner = it.ndim - 1;
  const int64_t n = it.size[inner], item = static_cast<int64_t>(itemsize(t));
  if (way == Short::Repeated) {
    load_tile(t, to, o.dtype, from, 1, n);
    for (int64_t have = n; have < rows * n; have *= 2)
      std::memcpy(to + have * item, to,
                  static_cast<size_t>(std::min(have, rows * n - have) * item));
    return;
  }
  alignas(64) Buffer numbers;
  load_tile(t, numbers, o.dtype, from, o.stride[inner - 1], rows);
  expand(itemsize(t), to, numbers, rows, n);
}

void run_short(const Iteration& it, const Short* way, int64_t begin, int64_t end) {
  const int64_t n = it.size[it.ndim - 1], outer = it.size[it.ndim - 2], most = kTile / n;
  alignas(64) Laid laid[kMost];  // Uninitialised: only touched parts cost.
  PointwiseRows rows(it, begin, 0);
  char* out[kMaxOutputs];
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  for (int64_t row = begin, height; row < end; row += height, rows.skip(height)) {
    height = std::min({most, end - row, outer - row % outer});
    const bool anew = row == begin || row % outer == 0;
    for (int k = 0; k < it.count(); ++k) {
      char* const use = way[k] <= Short::Number ? rows.at[k] : laid[k];
      if (k < it.n_out) {
        out[k] = use;
        continue;
      }
      in[k - it.n_out] = use;
      step[k - it.n_out] = way[k] != Short::Number;
      if (way[k] == Short::Tile)
        load_tile(it.loop_type(k), laid[k], it.operands[k].dtype, rows.at[k], 1, height * n);
      else if (way[k] == Short::Expanded || (way[k] == Short::Repeated && anew))
        lay_out(it, k, way[k], rows.at[k], laid[k], height);
    }
    it.loop(out, in, step, height * n);
    for (int k = 0; k < it.n_out; ++k) {
      if (way[k] == Short::Tile)
        store_tile(it.operands[k].dtype, rows.at[k], 1, it.loop_type(k), laid[k], height * n);
    }
  }
}

// What the loop takes in memory: narrow elements as they are, if all are of one dtype and the row
// has a loop for that.
DType loop_dtype(const OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  const DType compute = pointwise_compute_dtype(c);
  const TensorImpl* first = c.n_in ? c.in[0] : nullptr;
  if (!first && info.traits.moves && itemsize(c.out[0].dtype()) == 2) return c.out[0].dtype();
  if (!first || compute != (itemsize(first->dtype) == 1 ? kInt32 : kFloat32)) return compute;
  bool same = itemsize(first->dtype) <= 2 && info.loop(first->dtype);
  for (int i = 0; i < c.n_in; ++i) {
    same &= c.in[i] ? c.in[i]->dtype == first->dtype : info.integers >> i & 1;
  }
  for (int k = 0; k < c.n_out; ++k) same &= info.mask_out[k] || c.out[k].dtype() == first->dtype;
  return same ? first->dtype : compute;
}

// A few elements in the loop's own dtypes, side by side in memory: there is nothing to walk.
bool run_small(const OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  const TensorImpl& first = *c.out[0].impl();
  // No elements may have no memory, which a loop would write nothing to: that is undefined.
  if (c.into || first.numel == 0 || first.numel > kSmall) return false;
  const DType compute = loop_dtype(c);
  char* out[kMaxOutputs];
  for (int k = 0; k < c.n_out; ++k) {
    const TensorImpl& t = *c.out[k].impl();
    if (t.dtype != (info.mask_out[k] ? kBool : compute) || !t.contiguous()) return false;
    out[k] = t.data();
  }
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  alignas(64) Splat splats[kMaxOperands];
  for (int i = 0, word = 0; i < c.n_in; ++i) {
    const TensorImpl* t = c.in[i];
    const bool integer = info.integers >> i & 1;
    if (t && !integer && (t->dtype != compute || !t->contiguous() || !t->same_shape(first)))
      return false;
    const char* number = t ? nullptr : reinterpret_cast<const char*>(&c.attrs.v[word]);
    step[i] = t != nullptr;
    in[i] = t ? t->data() : integer ? number : splats[i];
    if (!t && !integer)
      load_splat(compute, splats[i], c.attrs.kind(i) == 3 ? kFloat64 : kInt64, number);
    word += !t;
  }
  const vx::Line line(0, 1);
  for (int k = 0; k < info.n_made; ++k) {
    if (info.place[k] != kNumber) return false;
    in[c.n_in + k] = reinterpret_cast<const char*>(&line);
  }
  info.loop(compute)(out, in, step, first.numel);
  return true;
}

}  // namespace

void pointwise_run(OpCall& c) {
  if (run_small(c)) return;
  Iteration it;
  if (!pointwise_iteration(c, it)) return;
  it.compute = loop_dtype(c);
  it.loop = it.info->loop(it.compute);
  alignas(64) Splat splats[kMaxOperands];
  for (int i = 0; i < c.n_in; ++i) {
    PointwiseOperand& o = it.operands[it.n_out + i];
    if (!o.number || it.info->integers >> i & 1) continue;
    load_splat(it.compute, splats[i], o.dtype, o.base);
    o.base = splats[i];
  }
  const bool across = turn_across(it);
  const int64_t n = it.size[it.ndim - 1];
  if (it.ndim == 1) {
    return parallel_for(n, kGrain, [&](int64_t b, int64_t e) { run_rows(it, 0, 1, b, e - b); });
  }
  Short way[kMost];
  const bool in_short = !across && choose_short(it, way);
  parallel_for(it.numel / n, std::max<int64_t>(1, kGrain / n), [&](int64_t b, int64_t e) {
    across     ? run_across(it, b, e, n)
    : in_short ? run_short(it, way, b, e)
               : run_rows(it, b, e, 0, n);
  });
}

}  // namespace brrr
