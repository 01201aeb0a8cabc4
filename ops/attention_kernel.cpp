#include "ops/attention_kernel.h"

#include <algorithm>

#include "ops/gemm_tile.h"
#include "ops/row_kernel.h"

namespace brrr {

namespace {

constexpr int64_t kQueries = 16, kKeys = 64;  // The largest tile, multiples of 16.
constexpr int64_t kPanels = 16384;            // Elements of the transposed operands on the stack.

template <class T> using Vec = std::conditional_t<sizeof(T) == 4, vx::f32, vx::f64>;

int64_t whole_vectors(int64_t n) {
  return (n + 15) / 16 * 16;
}

// C (+)= A B for m rows and n columns; only the last register's columns may be less than a
// register.
template <class T> void product(tile::Tile<T> t, int64_t m, int64_t n) {
  constexpr int64_t width = tile::kWidthOf<T>;
  const int64_t regs = (n + width - 1) / width, heights = (m + tile::kRows - 1) / tile::kRows;
  const int64_t most = m > tile::kFlatRows ? tile::kRegs : tile::kFlatRegs;
  const int64_t panels = (regs + most - 1) / most;
  const T *a = t.a, *b = t.b;
  T* c = t.c;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t from = regs * p / panels, to = regs * (p + 1) / panels;
    t.last = static_cast<int>(std::min(n, to * width) - (to - 1) * width);
    t.b = b + from * width;
    const auto& table = t.last < width ? tile::kTailTiles<T> : tile::kTiles<T>;
    for (int64_t i = 0; i < heights; ++i) {
      const int64_t top = m * i / heights, end = m * (i + 1) / heights;
      t.a = a + top * t.a_row;
      t.c = c + top * t.c_row + from * width;
      table[static_cast<size_t>(end - top - 1)][static_cast<size_t>(to - from - 1)](t);
    }
  }
}

// The keys [first, first + count) of a head, transposed and padded with zeros.
template <class T>
void transpose_tile(const RowMatrix<T>& from, int64_t first, int64_t count, int64_t cols, T* to) {
  const int64_t row = whole_vectors(count);
  for (int64_t j = 0; count < row && j < cols; ++j) {
    std::fill(to + j * row + count, to + (j + 1) * row, T(0));
  }
  tile::transpose(from.data + first * from.row, from.row, count, cols, to, row, false);
}

// Memory for transposed operands: the stack's, or for wide heads a tensor's.
template <class T> class Panels {
 public:
  explicit Panels(int64_t n) {
    if (n <= kPanels) return;
    more_ = raw_empty({n}, sizeof(T) == 4 ? kFloat32 : kFloat64, kCPU);
    at_ = reinterpret_cast<T*>(more_.impl()->data());
  }
  T* get() { return at_; }

 private:
  alignas(64) T stack_[kPanels];
  T* at_ = stack_;
  Tensor more_;
};

// --- a tile of scores ----------------------------------------------------------------------------

// Queries [row, row + rows) against keys [col, col + cols), of which a causal query sees fewer.
struct Place {
  int64_t row, rows, col, cols;
};

template <class T> int64_t visible(const AttentionHead<T>& h, const Place& p, int64_t r) {
  return (h.causal ? std::min(h.keys, p.row + r + 1) : h.keys) - p.col;
}

// Scores j .. j + 15 of row r from their products; -inf where the query must not look.
template <class T>
Vec<T> score(const AttentionHead<T>& h, const Place& p, int64_t r, int64_t j, const T* products) {
  using V = Vec<T>;
  const V hidden = spread<V>(-__builtin_inf());
  const int lanes = static_cast<int>(std::clamp<int64_t>(visible(h, p, r) - j, 0, 16));
  if (lanes == 0) return hidden;
  V x = vx::load(products + j) * vx::splat(h.scale);
  const int64_t at = (p.row + r) * h.mask_row + (p.col + j) * h.mask_col;
  if (h.bias) {
    x = x + (h.mask_col == 1 ? vx::load_n(h.bias + at, lanes)
                             : vx::load_strided_n(h.bias + at, h.mask_col, lanes));
  }
  if (h.allowed) {
    const vx::u8 bits = h.mask_col == 1 ? vx::load_n(h.allowed + at, lanes)
                                        : vx::load_strided_n(h.allowed + at, h.mask_col, lanes);
    x = vx::where(vx::bool_to_b16(bits), x, hidden);
  }
  return lanes == 16 ? x : vx::where(vx::first_lanes(lanes), x, hidden);
}

// The tile's part of the dropout mask. Philox gives 16 elements at multiples of 16, and a row of
// the mask begins anywhere.
template <class T> void fill_keep(const AttentionHead<T>& h, const Place& p, T* keep) {
  T row[kKeys + 32];
  for (int64_t r = 0; r < p.rows; ++r, keep += kKeys) {
    const int64_t at = h.element + (p.row + r) * h.keys + p.col, skip = at % 16;
    for (int64_t j = 0; j < skip + p.cols; j += 16) {
      if constexpr (sizeof(T) == 4)
        vx::store(row + j, h.dropout->mask(at - skip + j));
      else
        vx::store(row + j, h.dropout->mask64(at - skip + j));
    }
    std::copy_n(row + skip, p.cols, keep);
    std::fill_n(keep + p.cols, whole_vectors(p.cols) - p.cols, T(0));
  }
}

// f(place) for the tiles of keys that begin at `col`; causal ones leave out what nobody sees.
template <class T, class F>
void for_queries(const AttentionHead<T>& h, int64_t col, int64_t cols, const F& f) {
  const int64_t first = h.causal ? col / kQueries * kQueries : 0;
  for (int64_t row = first; row < h.queries; row += kQueries) {
    Place p{row, std::min(kQueries, h.queries - row), col, cols};
    if (h.causal) p.cols = std::min(cols, row + p.rows - col);
    f(p);
  }
}

// --- forward -------------------------------------------------------------------------------------

template <class T> void scale_row(T* x, T factor, int64_t n) {
  using V = Vec<T>;
  const V by = vx::splat(factor);
  map_row(n, [=](int64_t i, int lanes) { put<V>(x + i, take<V>(x + i, lanes) * by, lanes); });
}

// s: products of queries and keys, then weights relative to the rows' maxima so far. What `out` and
// `sum` hold of earlier tiles is brought to these maxima.
template <class T>
void weigh(const AttentionHead<T>& h, const Place& p, T* s, const T* keep, T* out, T* max, T* sum) {
  using V = Vec<T>;
  const int64_t n = whole_vectors(p.cols);
  V top[kQueries];
  for (int64_t r = 0; r < p.rows; ++r) {
    top[r] = spread<V>(-__builtin_inf());
    for (int64_t j = 0; j < n; j += 16) {
      const V x = score(h, p, r, j, s + r * kKeys);
      vx::store(s + r * kKeys + j, x);
      top[r] = MaxLanes()(top[r], x);
    }
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    const T old = p.col ? max[r] : -static_cast<T>(__builtin_inf());
    const T own = vx::reduce(top[r], MaxLanes()), both = old < own ? own : old;
    const T shift = both == -static_cast<T>(__builtin_inf()) ? T(0) : both;
    V total{};
    for (int64_t j = 0; j < n; j += 16) {
      const V e = vx::exp(vx::load(s + r * kKeys + j) - vx::splat(shift));
      total = total + e;
      vx::store(s + r * kKeys + j, keep ? e * vx::load(keep + r * kKeys + j) : e);
    }
    const T more = vx::reduce(total, AddLanes());
    max[r] = both;
    if (p.col == 0) {
      sum[r] = more;
    } else {
      const T fade = vx::exp(vx::splat(old - shift))[0];
      sum[r] = sum[r] * fade + more;
      scale_row(out + r * h.depth, fade, h.depth);
    }
  }
}

}  // namespace

template <class T> void attention_forward(const AttentionHead<T>& h, T* out, T* max, T* sum) {
  alignas(64) T s[kQueries * kKeys];
  alignas(64) T keep[kQueries * kKeys];
  Panels<T> panels(h.width * kKeys);
  T* keys = panels.get();
  if (h.keys == 0) {
    std::fill_n(out, h.queries * h.depth, T(0));
    std::fill_n(max, h.queries, -static_cast<T>(__builtin_inf()));
    std::fill_n(sum, h.queries, T(0));
  }
  for (int64_t col = 0; col < h.keys; col += kKeys) {
    const int64_t cols = std::min(kKeys, h.keys - col);
    transpose_tile(h.k, col, cols, h.width, keys);
    for_queries(h, col, cols, [&](const Place& p) {
      product<T>({.k = h.width,
                  .a = h.q.data + p.row * h.q.row,
                  .a_row = h.q.row,
                  .a_k = 1,
                  .b = keys,
                  .b_k = whole_vectors(cols),
                  .c = s,
                  .c_row = kKeys,
                  .last = 0,
                  .add = false},
                 p.rows, whole_vectors(p.cols));
      if (h.dropout) fill_keep(h, p, keep);
      T* o = out + p.row * h.depth;
      weigh(h, p, s, h.dropout ? keep : nullptr, o, max + p.row, sum + p.row);
      product<T>({.k = p.cols,
                  .a = s,
                  .a_row = kKeys,
                  .a_k = 1,
                  .b = h.v.data + col * h.v.row,
                  .b_k = h.v.row,
                  .c = o,
                  .c_row = h.depth,
                  .last = 0,
                  .add = col > 0},
                 p.rows, h.depth);
      const int64_t seen = h.causal ? std::min(h.keys, p.row + p.rows) : h.keys;
      if (col + cols < seen) return;
      for (int64_t r = 0; r < p.rows; ++r) {
        const T total = sum[p.row + r];
        scale_row(o + r * h.depth, total == 0 ? T(0) : T(1) / total, h.depth);
      }
    });
  }
}

// --- backward ------------------------------------------------------------------------------------

namespace {

// s: products q k, then the weights that the values took; d: products g v, then gradients of the
// products q k.
template <class T>
void weigh_backward(const AttentionHead<T>& h, const AttentionGradient<T>& d, const Place& p, T* s,
                    T* ds, const T* keep) {
  using V = Vec<T>;
  const int64_t n = whole_vectors(p.cols);
  T along[kQueries];
  for (int64_t r = 0; r < p.rows; ++r) {
    const T *g = d.g.data + (p.row + r) * d.g.row, *o = d.out.data + (p.row + r) * d.out.row;
    along[r] = sum_row<V>(h.depth, [=](int64_t i, int lanes) {
      return take<V>(g + i, lanes) * take<V>(o + i, lanes);
    });
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    const T max = d.max[p.row + r], sum = d.sum[p.row + r];
    const V shift = vx::splat(max == -static_cast<T>(__builtin_inf()) ? T(0) : max);
    const V factor = vx::splat(sum == 0 ? T(0) : T(1) / sum), mean = vx::splat(along[r]);
    for (int64_t j = 0; j < n; j += 16) {
      const int64_t at = r * kKeys + j;
      const V w = vx::exp(score(h, p, r, j, s + r * kKeys) - shift) * factor;
      const V dw = vx::load(ds + at);
      const V kept = keep ? vx::load(keep + at) : spread<V>(1);
      vx::store(s + at, keep ? w * kept : w);
      vx::store(ds + at, w * ((keep ? dw * kept : dw) - mean) * vx::splat(h.scale));
    }
  }
}

}  // namespace

template <class T>
void attention_backward(const AttentionHead<T>& h, const AttentionGradient<T>& d) {
  alignas(64) T s[kQueries * kKeys];
  alignas(64) T ds[kQueries * kKeys];
  alignas(64) T keep[kQueries * kKeys];
  Panels<T> panels((h.width + h.depth) * kKeys);
  T *keys = panels.get(), *values = keys + h.width * kKeys;
  std::fill_n(d.dq, h.queries * h.width, T(0));
  std::fill_n(d.dk, h.keys * h.width, T(0));
  std::fill_n(d.dv, h.keys * h.depth, T(0));
  for (int64_t col = 0; col < h.keys; col += kKeys) {
    const int64_t cols = std::min(kKeys, h.keys - col), room = whole_vectors(cols);
    transpose_tile(h.k, col, cols, h.width, keys);
    transpose_tile(h.v, col, cols, h.depth, values);
    for_queries(h, col, cols, [&](const Place& p) {
      const T *q = h.q.data + p.row * h.q.row, *g = d.g.data + p.row * d.g.row;
      const int64_t n = whole_vectors(p.cols);
      product<T>({h.width, q, h.q.row, 1, keys, room, s, kKeys, 0, false}, p.rows, n);
      product<T>({h.depth, g, d.g.row, 1, values, room, ds, kKeys, 0, false}, p.rows, n);
      if (h.dropout) fill_keep(h, p, keep);
      weigh_backward(h, d, p, s, ds, h.dropout ? keep : nullptr);
      T *dq = d.dq + p.row * h.width, *dk = d.dk + col * h.width, *dv = d.dv + col * h.depth;
      product<T>({p.rows, s, 1, kKeys, g, d.g.row, dv, h.depth, 0, true}, p.cols, h.depth);
      product<T>({p.rows, ds, 1, kKeys, q, h.q.row, dk, h.width, 0, true}, p.cols, h.width);
      product<T>({p.cols, ds, kKeys, 1, h.k.data + col * h.k.row, h.k.row, dq, h.width, 0, true},
                 p.rows, h.width);
    });
  }
}

template void attention_forward(const AttentionHead<float>&, float*, float*, float*);
template void attention_forward(const AttentionHead<double>&, double*, double*, double*);
template void attention_backward(const AttentionHead<float>&, const AttentionGradient<float>&);
template void attention_backward(const AttentionHead<double>&, const AttentionGradient<double>&);

}  // namespace brrr
