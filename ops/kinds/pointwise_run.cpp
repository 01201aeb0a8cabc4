// The CPU driver of pointwise rows: reduces strides, broadcasts and dtypes to what a loop takes,
// contiguous runs or splats of one compute type.
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
constexpr int64_t kGrain = 1 << 15;  // Elements that justify a thread.
constexpr int kMost = kMostPointwise;

// How the loop reads or writes an operand along the innermost dim. A scalar is splat once per call.
enum class Form : uint8_t { Direct, Number, Splat, Tile, Made };

using Buffer = char[kTile * 8];
using Splat = char[vx::lanes * 8];

// Writes each scalar n times, in whole vectors: the last one extends past the end.
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
  if (itemsize(ct) == 2 && from != ct) {  // A scalar.
    float x;
    load_tile(kFloat32, &x, from, src, 0, 1);
    store_tile(ct, to, 1, kFloat32, &x, 1);
  } else {
    load_tile(ct, to, from, src, 0, 1);
  }
  expand(itemsize(ct), to, to, 1, vx::lanes);
}

// One run along the innermost dim from the addresses `at`, in pieces of at most `tile` elements.
void run_inner(const Iteration& it, char* const* at, int64_t n, int64_t tile, const Form* form,
               Buffer* buf) {
  const int inner = it.ndim - 1;
  char* out[kMaxOutputs];
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  vx::Line places[kMost];
  for (int k = it.n_out; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    step[k - it.n_out] = form[k] == Form::Splat || form[k] == Form::Number ? 0 : 1;
    if (form[k] == Form::Splat) load_splat(it.loop_type(k), buf[k], o.dtype, at[k]);
  }
  for (int64_t begin = 0; begin < n; begin += tile) {
    const int64_t m = std::min(tile, n - begin);
    for (int k = 0; k < it.count(); ++k) {
      const PointwiseOperand& o = it.operands[k];
      if (form[k] == Form::Made) {
        const auto& p = *reinterpret_cast<const vx::Line*>(at[k]);
        places[k] = {p.first + begin * p.step, p.step};
        in[k - it.n_out] = reinterpret_cast<const char*>(&places[k]);
        continue;
      }
      char* p = at[k] + begin * o.stride[inner] * o.item();
      if (form[k] == Form::Tile && k >= it.n_out) {
        load_tile(it.loop_type(k), buf[k], o.dtype, p, o.stride[inner], m);
      }
      char* use = form[k] <= Form::Number ? p : buf[k];
      if (k < it.n_out)
        out[k] = use;
      else
        in[k - it.n_out] = use;
    }
    it.loop(out, in, step, m);
    for (int k = 0; k < it.n_out; ++k) {
      if (form[k] != Form::Tile) continue;
      const PointwiseOperand& o = it.operands[k];
      char* p = at[k] + begin * o.stride[inner] * o.item();
      store_tile(o.dtype, p, o.stride[inner], it.loop_type(k), buf[k], m);
    }
  }
}

// Chooses how the loop sees each operand; returns how many elements it may take at once.
int64_t choose_forms(const Iteration& it, Form* form) {
  const int inner = it.ndim - 1;
  int64_t most = it.size[inner];
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    const bool dense = o.stride[inner] == 1 || it.size[inner] == 1;
    const bool integer = k >= it.n_out && it.info->integers >> (k - it.n_out) & 1;
    form[k] = o.made                                  ? Form::Made
              : integer                               ? Form::Direct
              : o.number                              ? Form::Number
              : k >= it.n_out && o.stride[inner] == 0 ? Form::Splat
              : dense && o.dtype == it.loop_type(k)   ? Form::Direct
                                                      : Form::Tile;
    if (o.made && o.stride[inner] > vx::longest_step) most = 1;
    if (form[k] == Form::Tile) most = std::min(most, kTile);
  }
  return most;
}

// In a transposed operand adjacent elements belong to consecutive rows. It is read a cache line at
// a time, for as many rows at once as a line has elements; for more if rows are short.
constexpr int kMaxTransposed = 4;  // Operands; further ones are loaded with their stride.

const int64_t* read_strides(const Iteration& it, int k) {
  const PointwiseOperand& o = it.operands[k];
  return k < it.n_out || o.number || o.made ? nullptr : o.stride;
}

// Makes the dim along which an operand is transposed the last but one, if there is one.
bool place_transposed_dim(Iteration& it) {
  if (it.info->n_made) return false;
  const int dim =
      transposed_dim(it.ndim, it.size, it.count(), [&](int k) { return read_strides(it, k); });
  if (dim < 0) return false;
  move_before_last(it.size, dim, it.ndim);
  for (int k = 0; k < it.count(); ++k) move_before_last(it.operands[k].stride, dim, it.ndim);
  return true;
}

// Rows [begin, end) of the outer dims, n elements each, with some operands transposed.
void run_transposed(const Iteration& it, int64_t begin, int64_t end, int64_t n) {
  Form form[kMost];
  choose_forms(it, form);
  const int inner = it.ndim - 1;
  alignas(64) char blocks[kMaxTransposed][kTransposeBlock * 8];
  const int64_t pitch = std::min(n, kTransposeWidth);
  bool flat = n == pitch, tiles = false;  // A block's rows are contiguous in every operand.
  int64_t step[2][kMost];                 // Bytes from element to element and from row to row.
  char* block[kMost] = {};
  for (int k = 0, used = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    for (int d : {0, 1}) step[d][k] = o.stride[inner - d] * o.item();
    const int64_t* const read = read_strides(it, k);
    if (read && used < kMaxTransposed && is_transposed(it.ndim, it.size, read, inner - 1)) {
      form[k] = Form::Direct;
      block[k] = blocks[used++];
    } else {
      flat &= form[k] == Form::Number || (o.stride[inner] == 1 && o.stride[inner - 1] == n);
      tiles |= form[k] == Form::Tile;
    }
  }
  const int64_t most = (flat && tiles ? kTile : kTransposeBlock) / pitch;
  alignas(64) Buffer buf[kMost];
  PointwiseRows rows(it, begin, 0);
  for (int64_t row = begin, height; row < end; row += height) {
    height = std::min({most, end - row, it.size[inner - 1] - row % it.size[inner - 1]});
    for (int64_t i = 0; i < n; i += kTransposeWidth) {
      const int64_t m = std::min(kTransposeWidth, n - i);
      for (int k = it.n_out; k < it.count(); ++k) {
        const PointwiseOperand& o = it.operands[k];
        if (block[k]) {
          load_transposed_block(it.compute, block[k], pitch, o.dtype, rows.at[k] + i * step[0][k],
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
        run_inner(it, at, together, together, form, buf);
      }
    }
    rows.skip(height);
  }
}

// Rows [begin, end) of the outer dims, of each the n elements of the innermost dim from `first` on.
void run_rows(const Iteration& it, int64_t begin, int64_t end, int64_t first, int64_t n) {
  Form form[kMost];
  const int64_t tile = std::min(choose_forms(it, form), n);
  PointwiseRows rows(it, begin, first);
  const auto as_it_is = [](Form w) { return w <= Form::Number || w == Form::Made; };
  if (tile == n && std::all_of(form, form + it.count(), as_it_is)) {
    // An attention's heads have rows of 16 elements: the cost between rows matters.
    int64_t steps[kMaxOperands];
    for (int k = 0; k < it.n_in; ++k) steps[k] = form[it.n_out + k] != Form::Number;
    for (int64_t row = begin; row < end; ++row, rows.next()) {
      it.loop(rows.at, rows.at + it.n_out, steps, n);
    }
    return;
  }
  alignas(64) Buffer buf[kMost];  // Uninitialised: only touched parts cost.
  for (int64_t row = begin; row < end; ++row, rows.next())
    run_inner(it, rows.at, n, tile, form, buf);
}

// Rows so short that the cost between them matters, and contiguous in every output, are run many at
// once. Broadcast operands are laid out for that: a shared row repeated, a per-row scalar n times.
constexpr int64_t kShortRow = kTile / 2;
enum class Short : uint8_t { Direct, Number, Tile, Repeated, Expanded };
using LaidOut = char[(kTile + vx::lanes) * 8];

bool choose_short(const Iteration& it, Short* form) {
  const int inner = it.ndim - 1;
  const int64_t n = it.size[inner];
  if (inner == 0 || n > kShortRow || it.info->integers) return false;
  for (int k = 0; k < it.count(); ++k) {
    const PointwiseOperand& o = it.operands[k];
    const int64_t along = o.stride[inner], down = o.stride[inner - 1];
    const bool flat = along == 1 && down == n;
    if (!flat && (k < it.n_out || (!o.number && along != 0 && (along != 1 || down != 0))))
      return false;
    form[k] = o.number     ? Short::Number
              : flat       ? o.dtype == it.loop_type(k) ? Short::Direct : Short::Tile
              : along == 0 ? Short::Expanded
                           : Short::Repeated;
  }
  return true;
}

// Lays out `rows` rows of operand k, which begins at `from`, as the loop takes them.
void lay_out(const Iteration& it, int k, Short form, const char* from, char* to, int64_t rows) {
  const PointwiseOperand& o = it.operands[k];
  const DType t = it.loop_type(k);
  const int inner = it.ndim - 1;
  const int64_t n = it.size[inner], item = static_cast<int64_t>(itemsize(t));
  if (form == Short::Repeated) {
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

void run_short(const Iteration& it, const Short* form, int64_t begin, int64_t end) {
  const int64_t n = it.size[it.ndim - 1], outer = it.size[it.ndim - 2], most = kTile / n;
  alignas(64) LaidOut laid[kMost];  // Uninitialised: only touched parts cost.
  PointwiseRows rows(it, begin, 0);
  char* out[kMaxOutputs];
  const char* in[kMaxOperands];
  int64_t step[kMaxOperands];
  for (int64_t row = begin, height; row < end; row += height, rows.skip(height)) {
    height = std::min({most, end - row, outer - row % outer});
    const bool new_outer = row == begin || row % outer == 0;
    for (int k = 0; k < it.count(); ++k) {
      char* const use = form[k] <= Short::Number ? rows.at[k] : laid[k];
      if (k < it.n_out) {
        out[k] = use;
        continue;
      }
      in[k - it.n_out] = use;
      step[k - it.n_out] = form[k] != Short::Number;
      if (form[k] == Short::Tile)
        load_tile(it.loop_type(k), laid[k], it.operands[k].dtype, rows.at[k], 1, height * n);
      else if (form[k] == Short::Expanded || (form[k] == Short::Repeated && new_outer))
        lay_out(it, k, form[k], rows.at[k], laid[k], height);
    }
    it.loop(out, in, step, height * n);
    for (int k = 0; k < it.n_out; ++k) {
      if (form[k] == Short::Tile)
        store_tile(it.operands[k].dtype, rows.at[k], 1, it.loop_type(k), laid[k], height * n);
    }
  }
}

// The loop's dtype in memory: a narrow dtype unconverted, if all operands share it and the row has
// a loop for it.
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

// Few elements, contiguous and in the loop's own dtypes: no iteration to set up.
bool run_small(const OpCall& c) {
  const PointwiseInfo& info = *c.op->pointwise;
  const TensorImpl& first = *c.out[0].impl();
  // An empty tensor may have no memory, and a loop over a null pointer is undefined behaviour.
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
  const bool transposed = place_transposed_dim(it);
  const int64_t n = it.size[it.ndim - 1];
  if (it.ndim == 1) {
    return parallel_for(n, kGrain, [&](int64_t b, int64_t e) { run_rows(it, 0, 1, b, e - b); });
  }
  Short form[kMost];
  const bool in_short = !transposed && choose_short(it, form);
  parallel_for(it.numel / n, std::max<int64_t>(1, kGrain / n), [&](int64_t b, int64_t e) {
    transposed ? run_transposed(it, b, e, n)
    : in_short ? run_short(it, form, b, e)
               : run_rows(it, b, e, 0, n);
  });
}

}  // namespace brrr
