#include "ops/rows/attention_kernel.h"

#include <algorithm>

#include "ops/vocabulary/gemm_tile.h"
#include "ops/vocabulary/transpose.h"

namespace brrr {

namespace {

constexpr int64_t kQueries = 32, kKeys = 128;  // The largest tile, multiples of 16.
constexpr int64_t kWide = 256;                 // Columns of queries that are transposed at a time.

template <class T> using Vec = std::conditional_t<sizeof(T) == 4, vx::f32, vx::f64>;

// The size of the parts if `size` is cut into equal ones (but the last) of at most `most`. One or
// two parts, the usual case, avoid the division, which takes as long as an eighth of a tile.
int64_t part_of(int64_t size, int64_t most) {
  if (size <= most) return size;
  if (size <= 2 * most) return (size + 1) / 2;
  const int64_t parts = (size - 1) / most + 1;
  return (size + parts - 1) / parts;
}

// size / part, which is at least 1; avoids the division likewise.
int64_t times(int64_t size, int64_t part) {
  return size < 2 * part ? 1 : size < 3 * part ? 2 : size / part;
}

// C (+)= A B for m rows and n columns; only the last register of columns may be partly filled.
// (Inlining saves a twelfth for small heads: the code between their tiles.)
template <class T> BRRR_VX void product(tile::Tile<T> t, int64_t m, int64_t n) {
  constexpr int64_t width = tile::kWidthOf<T>;
  if (n == 0) return;
  const int64_t regs = (n + width - 1) / width;
  const int64_t across = part_of(regs, m > tile::kFlatRows ? tile::kRegs : tile::kFlatRegs);
  const int64_t height = part_of(m, tile::tile_rows(static_cast<int>(across)));
  const T *a = t.a, *b = t.b;
  T* c = t.c;
  for (int64_t from = 0, to; from < regs; from = to) {
    to = std::min(from + across, regs);
    t.last = static_cast<int>(std::min(n, to * width) - (to - 1) * width);
    t.b = b + from * width;
    const auto& tiles = tile::kTiles<T>[t.last < width][static_cast<size_t>(to - from - 1)];
    for (int64_t top = 0, high; top < m; top += high * t.count) {
      high = std::min(height, m - top);
      t.count = times(m - top, high);
      t.a = a + top * t.a_row;
      t.c = c + top * t.c_row + from * width;
      tiles[static_cast<size_t>(high - 1)](t);
    }
  }
}

// Transposes a block of up to kQueries rows to [cols, lanes], with zeros beyond the rows.
template <class T>
void transpose(const T* from, int64_t from_row, int64_t rows, int64_t cols, int64_t lanes, T* to) {
  for (int64_t j = 0; rows < lanes && j < cols; ++j) {
    std::fill(to + j * lanes + rows, to + (j + 1) * lanes, T(0));
  }
  tile::transpose(from, from_row, rows, cols, to, lanes, false);
}

// --- a tile of scores ----------------------------------------------------------------------------

// Queries [row, row + rows) against keys [col, col + cols). Tiles are stored as [cols, lanes], a
// key's queries contiguous, so that one vector computes the softmax of 16 queries in its lanes.
struct Tile {
  int64_t row, rows, lanes, col, cols;
};

// How many of the tile's keys any of the `n` queries from `lane` on may attend to.
template <class T>
int64_t seen(const AttentionHead<T>& h, const Tile& p, int64_t lane, int64_t n = 16) {
  return h.causal ? std::clamp<int64_t>(p.row + lane + n - p.col, 0, p.cols) : p.cols;
}

// Rows of a product at a time under the causal rule: two register tiles of a CPU with 512-bit
// registers. One tile would compute fewer hidden scores but takes as long.
constexpr int64_t kCausalRows = 16;

// Calls f(key, n, lane) for each group of n keys that are multiplied at a time; queries before
// `lane` see none of them.
template <class T, class F> void for_keys(const AttentionHead<T>& h, const Tile& p, const F& f) {
  const int64_t offset = p.row - p.col, group = h.causal ? kCausalRows : p.cols;
  for (int64_t key = 0; key < p.cols; key += group) {
    f(key, std::min(group, p.cols - key), h.causal ? std::max<int64_t>(0, key - offset) : 0);
  }
}

// Transposes a tile of a [queries, keys] tensor from rows to lanes.
// f(r, n, row) writes the row of query r for the tile's first n keys.
template <class T, class F>
const T* fill_tile(const AttentionHead<T>& h, const Tile& p, T* to, const F& f) {
  constexpr int64_t kStride = kKeys + 32;
  alignas(64) T rows[16 * kStride];
  for (int64_t lane = 0; lane < p.lanes; lane += 16) {
    const int64_t n = seen(h, p, lane), count = std::min<int64_t>(16, p.rows - lane);
    for (int64_t r = 0; r < count; ++r) f(lane + r, n, rows + r * kStride);
    std::fill(rows + count * kStride, rows + 16 * kStride, T(0));
    tile::transpose(rows, kStride, 16, n, to + lane, p.lanes, false);
  }
  return to;
}

// The tile's part of the mask, as terms of the scores: 0 or -inf if it is bool.
template <class T> const T* fill_mask(const AttentionHead<T>& h, const Tile& p, T* to) {
  using V = Vec<T>;
  return fill_tile(h, p, to, [&](int64_t r, int64_t n, T* row) {
    const int64_t at = (p.row + r) * h.mask_row + p.col * h.mask_col, step = h.mask_col;
    map_row(n, [&](int64_t j, int lanes) {
      if (h.bias) {
        const T* from = h.bias + at + j * step;
        vx::store(row + j,
                  step == 1 ? take<V>(from, lanes) : vx::load_strided_n(from, step, lanes));
      } else {
        const uint8_t* from = h.allowed + at + j * step;
        const vx::u8 bits =
            step == 1 ? vx::load_n(from, lanes) : vx::load_strided_n(from, step, lanes);
        vx::store(row + j, vx::mask_term<V>(vx::bool_to_b16(bits)));
      }
    });
  });
}

// The tile's part of the dropout mask. Philox generates 16 elements from a multiple of 16 on, while
// a row of the mask may begin anywhere.
template <class T> const T* fill_keep(const AttentionHead<T>& h, const Tile& p, T* to) {
  return fill_tile(h, p, to, [&](int64_t r, int64_t n, T* row) {
    const int64_t at = h.element + (p.row + r) * h.keys + p.col, skip = at % 16;
    for (int64_t j = 0; j < skip + n; j += 16) {
      vx::store(row + j, h.dropout->template mask<Vec<T>>(at - skip + j));
    }
    if (skip) std::copy(row + skip, row + skip + n, row);
  });
}

// The mask and the dropout mask of a tile of scores.
template <class T> struct Modifiers {
  alignas(64) T mask_tile[kQueries * kKeys], keep_tile[kQueries * kKeys];
  const T *mask = nullptr, *keep = nullptr;

  void fill(const AttentionHead<T>& h, const Tile& p) {
    if (h.bias || h.allowed) mask = fill_mask(h, p, mask_tile);
    if (h.dropout) keep = fill_keep(h, p, keep_tile);
  }
};

constexpr vx::i32 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Scores of key j and 16 queries from `lane` on, from their product; -inf where a query may not
// attend to the key.
template <class T>
BRRR_VX vx::Parts<Vec<T>> score(const AttentionHead<T>& h, const Tile& p, int64_t j, int64_t lane,
                                Vec<T> product, const T* mask) {
  using V = Vec<T>;
  vx::Parts<V> x = product * vx::splat(h.scale);
  if (mask) x = x.get() + vx::load(mask + j * p.lanes + lane);
  const int64_t after = p.col + j - p.row - lane;  // Queries that come before the key.
  if (h.causal && after > 0) {
    x = vx::where(vx::hidden(kLane, vx::splat(static_cast<int>(after))), vx::lowest<V>(), x.get());
  }
  return x;
}

// A tile of products of keys (or values) with the transposed queries (or gradients) q: [cols,
// width] x [width, lanes]. `room` has kWide transposed columns; `there`: it still has them, if all.
template <class T>
void by_pairs(const AttentionHead<T>& h, const Tile& p, const RowMatrix<const T>& a,
              const RowMatrix<const T>& q, int64_t width, T* room, bool there, T* s) {
  for (int64_t from = 0; from == 0 || from < width; from += kWide) {
    const int64_t n = std::min(kWide, width - from);
    if (!there || width > kWide) transpose(q.at(p.row) + from, q.row, p.rows, n, p.lanes, room);
    for_keys(h, p, [&](int64_t key, int64_t keys, int64_t lane) {
      const int64_t first = lane / 16 * 16;
      const T* left = a.at(p.col + key) + from;
      T* to = s + key * p.lanes + first;
      product<T>({n, left, a.row, 1, room + first, p.lanes, to, p.lanes, 0, from > 0}, keys,
                 p.lanes - first);
    });
  }
}

// C (+)= S B, where S is the tile by queries: [rows, cols] x [cols, n].
template <class T>
void by_queries(const AttentionHead<T>& h, const Tile& p, const T* s, const RowMatrix<const T>& b,
                const RowMatrix<T>& c, int64_t n, bool add) {
  const int64_t group = h.causal ? kCausalRows : p.rows;
  for (int64_t lane = 0; lane < p.rows; lane += group) {
    const int64_t keys = seen(h, p, lane, group);
    if (!keys && add) continue;
    product<T>({keys, s + lane, 1, p.lanes, b.data, b.row, c.at(lane), c.row, 0, add},
               std::min(group, p.rows - lane), n);
  }
}

// C (+)= S B, where S is the tile by keys: [cols, rows] x [rows, n]. Adds to the first `known` rows
// of C and writes the others.
template <class T>
void by_keys(const AttentionHead<T>& h, const Tile& p, const T* s, const RowMatrix<const T>& b,
             const RowMatrix<T>& c, int64_t n, int64_t known) {
  for_keys(h, p, [&](int64_t key, int64_t keys, int64_t lane) {
    const T *a = s + key * p.lanes + lane, *right = b.at(lane);
    product<T>({p.rows - lane, a, p.lanes, 1, right, b.row, c.at(key), c.row, 0, key < known}, keys,
               n);
  });
}

// --- forward -------------------------------------------------------------------------------------

template <class T> BRRR_VX void scale_row(T* x, T factor, int64_t n) {
  using V = Vec<T>;
  map_row(n, [x, by = vx::splat(factor)](int64_t i, int lanes) {
    put<V>(x + i, take<V>(x + i, lanes) * by, lanes);
  });
}

template <class T> void clear(const RowMatrix<T>& c, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(c.at(r), n, T(0));
}

// The online softmax states of a block of queries.
template <class T> struct RowStates { alignas(64) T max[kQueries], sum[kQueries], fade[kQueries]; };

// s: products of queries and keys, which become weights relative to the maxima so far; `fade` is
// the factor that rescales sums over earlier tiles to these maxima.
template <class T>
void weigh(const AttentionHead<T>& h, const Tile& p, const Modifiers<T>& by, T* s,
           RowStates<T>& now) {
  using V = Vec<T>;
  for (int64_t lane = 0; lane < p.lanes; lane += 16) {
    T* column = s + lane;
    const int64_t n = seen(h, p, lane);
    vx::Softmax<V> state{vx::load(now.max + lane), vx::load(now.sum + lane), V{}};
    vx::Parts<V> top = state.max;
    for (int64_t j = 0; j < n; ++j) {
      const vx::Parts<V> x = score(h, p, j, lane, vx::load(column + j * p.lanes), by.mask);
      x.store(column + j * p.lanes);
      top = vx::larger(top.get(), x.get());
    }
    vx::store(now.fade + lane, vx::meet(state, top.get(), [](V x) { return vx::exp(x); }));
    vx::Parts<V> sum = V{};
    for (int64_t j = 0; j < n; ++j) {
      vx::Parts<V> e = vx::exp(vx::load(column + j * p.lanes) - state.shift);
      sum = sum.get() + e.get();
      if (by.keep) e = e.get() * vx::load(by.keep + j * p.lanes + lane);
      e.store(column + j * p.lanes);
    }
    vx::store(now.max + lane, state.max);
    vx::store(now.sum + lane, state.sum + sum.get());
  }
}

// --- backward ------------------------------------------------------------------------------------

// sum(g * out) per query, the sum over keys of weight times weight's gradient, which the softmax's
// gradient subtracts. Needed if no tile holds all of a query's weights.
template <class T> void along_weights(const AttentionHead<T>& h, const AttentionGradient<T>& d) {
  for (int64_t i = 0; i < h.queries; ++i) {
    const T *g = d.g.at(i), *o = d.out.at(i);
    d.along[i] = sum_row<Vec<T>>(h.depth, [=](int64_t j, int lanes) {
      return take<Vec<T>>(g + j, lanes) * take<Vec<T>>(o + j, lanes);
    });
  }
}

// s: products q k, which become the weights that multiplied the values; ds: products g v, which
// become gradients of the products q k.
template <class T>
void weigh_backward(const AttentionHead<T>& h, const AttentionGradient<T>& d, const Tile& p,
                    const Modifiers<T>& by, T* s, T* ds) {
  using V = Vec<T>;
  for (int64_t lane = 0; lane < p.lanes; lane += 16) {
    const int64_t n = seen(h, p, lane), row = p.row + lane;
    const int rows = static_cast<int>(std::clamp<int64_t>(p.rows - lane, 0, 16));
    const V shift = vx::finite_shift(take<V>(d.max + row, rows));
    const V factor = vx::inverse(take<V>(d.sum + row, rows));
    vx::Parts<V> along = V{};
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = j * p.lanes + lane;
      const V w = vx::exp(score(h, p, j, lane, vx::load(s + at), by.mask).get() - shift) * factor;
      if (by.keep) vx::store(ds + at, vx::load(ds + at) * vx::load(by.keep + at));
      along = along.get() + w * vx::load(ds + at);
      vx::store(s + at, w);
    }
    if (h.keys > kKeys) along = take<V>(d.along + row, rows);
    const V scale = vx::splat(h.scale);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = j * p.lanes + lane;
      const V w = vx::load(s + at);
      vx::store(ds + at, vx::score_gradient(w, vx::load(ds + at), along.get()) * scale);
      if (by.keep) vx::store(s + at, w * vx::load(by.keep + at));
    }
  }
}

}  // namespace

template <class T>
void attention_forward(const AttentionHead<T>& h, RowMatrix<T> out, T* max, T* sum) {
  alignas(64) T s[kQueries * kKeys];
  alignas(64) T room[kQueries * kWide];
  Modifiers<T> by;
  RowStates<T> now;
  for (int64_t row = 0; row < h.queries; row += kQueries) {
    const int64_t rows = std::min(kQueries, h.queries - row), lanes = (rows + 15) / 16 * 16;
    const int64_t keys = h.causal ? std::min(h.keys, row + rows) : h.keys;
    const RowMatrix<T> o{out.at(row), out.row};
    std::fill_n(now.max, kQueries, -static_cast<T>(__builtin_inf()));
    std::fill_n(now.sum, kQueries, T(0));
    if (keys == 0) clear(o, rows, h.depth);
    for (int64_t col = 0; col < keys; col += kKeys) {
      const Tile p{row, rows, lanes, col, std::min(kKeys, keys - col)};
      by_pairs(h, p, h.k, h.q, h.width, room, col > 0, s);
      by.fill(h, p);
      weigh(h, p, by, s, now);
      for (int64_t r = 0; col && r < rows; ++r) scale_row(o.at(r), now.fade[r], h.depth);
      by_queries(h, p, s, {h.v.at(col), h.v.row}, o, h.depth, col > 0);
    }
    for (int64_t lane = 0; lane < lanes; lane += 16) {
      vx::store(now.fade + lane, vx::inverse(vx::load(now.sum + lane)));
    }
    for (int64_t r = 0; r < rows; ++r) scale_row(o.at(r), now.fade[r], h.depth);
    std::copy_n(now.max, rows, max + row);
    std::copy_n(now.sum, rows, sum + row);
  }
}

template <class T>
void attention_backward(const AttentionHead<T>& h, const AttentionGradient<T>& d) {
  alignas(64) T s[kQueries * kKeys];
  alignas(64) T ds[kQueries * kKeys];
  alignas(64) T room[kQueries * kWide];
  Modifiers<T> by;
  if (h.keys == 0) clear(d.dq, h.queries, h.width);
  if (h.keys > kKeys) along_weights(h, d);
  for (int64_t col = 0; col < h.keys; col += kKeys) {
    const RowMatrix<T> dk{d.dk.at(col), d.dk.row}, dv{d.dv.at(col), d.dv.row};
    int64_t known = 0;  // How many of these keys have gradients already.
    for (int64_t row = h.causal ? col : 0; row < h.queries; row += kQueries) {
      const int64_t rows = std::min(kQueries, h.queries - row), lanes = (rows + 15) / 16 * 16;
      const int64_t keys = h.causal ? std::min(h.keys, row + rows) : h.keys;
      const Tile p{row, rows, lanes, col, std::min(kKeys, keys - col)};
      by_pairs(h, p, h.k, h.q, h.width, room, false, s);
      by_pairs(h, p, h.v, d.g, h.depth, room, false, ds);
      by.fill(h, p);
      weigh_backward(h, d, p, by, s, ds);
      by_keys(h, p, s, {d.g.at(row), d.g.row}, dv, h.depth, known);
      by_keys(h, p, ds, {h.q.at(row), h.q.row}, dk, h.width, known);
      by_queries(h, p, ds, {h.k.at(col), h.k.row}, {d.dq.at(row), d.dq.row}, h.width, col > 0);
      known = p.cols;
    }
    const int64_t unseen = std::min(kKeys, h.keys - col) - known;
    clear(RowMatrix<T>{dk.at(known), dk.row}, unseen, h.width);
    clear(RowMatrix<T>{dv.at(known), dv.row}, unseen, h.depth);
  }
}

template void attention_forward(const AttentionHead<float>&, RowMatrix<float>, float*, float*);
template void attention_forward(const AttentionHead<double>&, RowMatrix<double>, double*, double*);
template void attention_backward(const AttentionHead<float>&, const AttentionGradient<float>&);
template void attention_backward(const AttentionHead<double>&, const AttentionGradient<double>&);

}  // namespace brrr
