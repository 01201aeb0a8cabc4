#include "backends/cpu/gemm.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "backends/cpu/pool.h"
#include "ops/vocabulary/gemm_tile.h"
#include "ops/vocabulary/transpose.h"

namespace brrr::cpu {

using namespace tile;  // NOLINT: load, store, transpose and tiles

namespace {

// --- the loops over panels and tiles -------------------------------------------------------------

constexpr int64_t kScratch = 32 * 1024;  // Floats on the stack for one packed panel.
constexpr int64_t kDepth = 256;          // Rows of a packed panel, so that it stays in cache.
static_assert(kDepth * kFlatRegs * kWidth <= kScratch);
constexpr int64_t kTall = 64, kResults = 128 * 1024;  // Block of C: most tiles down, most floats.
constexpr int64_t kFlatTerms = 4;
constexpr int64_t kLine = 16;             // Floats in a cache line.
constexpr int64_t kDistant = 512 * 1024;  // Floats of a right operand that exceeds L2.
constexpr int64_t kFar = 96 * 1024;       // Of it and C; beyond, they exceed L2 with all else.
// Pack the right operand if it has more rows than kFarRows (narrower panels gain earlier) or more
// elements than L1 holds (kFarElements): rows a power of two apart map to a few cache sets.
// 512-bit tiles with a transposed left operand read three lines of a row in 12 cycles, which L2
// sustains: packing costs more, up to 10 % at k = 2048, unless the row pitch is a multiple of 1 KB
// (kSharedSets) above 2 KB (kFarApart), where rows conflict in L2 as well.
constexpr int64_t kFarRows = kWidth == 16 ? 512 : 128;
constexpr int64_t kFarElements = kWidth == 16 ? std::numeric_limits<int64_t>::max() : 4096;
constexpr int64_t kFarApart = 512, kSharedSets = 256;
// A transposed left operand is read one line per term, which conflict in the same way, and a
// 256-bit tile uses only 24 bytes of each: pack the tiles of a block (kTallCopied of them) if more
// than kFewPanels panels reuse them.
constexpr int64_t kFewPanels = 3, kTallCopied = 24;
constexpr bool kCopiesLeft = kWidth == 8;
constexpr int64_t kLeft =
    kCopiesLeft ? kTallCopied * tile_rows(kRegs) * (kDepth + kDepth / 2) + kWidth : 1;

// Splits `size` units into the fewest parts of at most `most`; part sizes differ by at most one.
struct Split {
  int64_t count, least, longer;
  Split(int64_t size, int64_t most)
      : count((size + most - 1) / most), least(size / count), longer(size % count) {}
  int64_t at(int64_t i) const { return i * least + std::min(i, longer); }
  int64_t widest() const { return least + (longer > 0); }
  // How many parts in [i, end) have the length of part i.
  int64_t equal_from(int64_t i, int64_t end) const {
    return (i < longer ? std::min(longer, end) : end) - i;
  }
};

// How to compute C or, where that is cheaper, its transpose: C^T = op(B)^T op(A)^T.
struct Plan {
  int64_t n, k;
  const float* a;
  int64_t a_row, a_k;
  const float* b;
  int64_t b_ld;
  bool b_trans;  // Element (k, j) of the right operand is b[j * b_ld + k], else b[k * b_ld + j].
  bool pack;     // Pack panels of the right operand: a term's columns become contiguous.
  bool pack_left = false;  // Pack tiles of the left operand: a term's rows become contiguous.
  const float* packed;     // All panels already packed, or null.
  bool c_trans;            // Element (i, j) goes to c[j * c_ld + i], else c[i * c_ld + j].
  float* c;
  int64_t c_ld;
  Split panels, tiles;  // Across, in registers; down, in rows.
  bool add;
  bool prefetch;     // Tiles prefetch operands; run_panel prefetches C and the next panel's source.
  bool far = false;  // Tiles prefetch operands, C and the next panel.

  // Terms per pass over the panels: about kDepth, in parts of nearly equal length; one chain of a
  // sum beyond kLongestChain; all where C is transposed, which is stored only once.
  int64_t depth() const {
    if (c_trans) return k;
    if (k > kLongestChain) return kChain;
    const int64_t parts = std::max<int64_t>(1, (k + kDepth / 2) / kDepth);
    const int64_t part = (k - 1) / parts + 1;
    return part * panels.widest() * kWidth <= kScratch ? part : kDepth;
  }
  // Offset in `packed` of the panel at column `col` for the `terms` terms that start at `from`.
  int64_t packed_offset(int64_t col, int64_t from, int64_t terms) const {
    return from * panels.at(panels.count) * kWidth + col * terms;
  }
};

// Prefetches, while one panel is computed, the rows that the next panel will be packed from.
// (Forced inline: g++ deletes calls of a function that only prefetches.)
struct PanelPrefetch {
  const float* at = nullptr;
  int64_t row = 0, rows = 0, cols = 0;

  PanelPrefetch() = default;
  // The panel's terms from `from` on.
  PanelPrefetch(const Plan& p, int64_t panel, int64_t from) {
    const int64_t col = p.panels.at(panel) * kWidth, k = std::min(p.depth(), p.k - from);
    const int64_t width = std::min(p.panels.at(panel + 1) * kWidth, p.n) - col;
    at = p.b_trans ? p.b + col * p.b_ld + from : p.b + from * p.b_ld + col;
    row = p.b_ld;
    rows = p.b_trans ? width : k;
    cols = p.b_trans ? k : width;
  }

  // Issues part i of n.
  __attribute__((always_inline)) void issue(int64_t i, int64_t n) const {
    for (int64_t r = rows * i / n; r < rows * (i + 1) / n; ++r) {
      for (int64_t c = 0; c < cols; c += kLine) vx::prefetch<2>(at + r * row + c);
      vx::prefetch<2>(at + r * row + cols - 1);
    }
  }
};

BRRR_VX void prefetch_result(const float* c, int64_t row, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < cols; j += kLine) __builtin_prefetch(c + r * row + j, 1);
  }
}

// Computes the tiles [begin, end) of one panel for the terms [from, from + t.k).
void run_panel(const Plan& p, Tile<float> t, int64_t col, int regs, int64_t from, int64_t begin,
               int64_t end, const PanelPrefetch& ahead, const float* left) {
  alignas(64) float block[2 * kTallest][kRegs * kWidth];
  const int64_t cols = (regs - 1) * kWidth + t.last;
  const int64_t first = begin, tiles = end - begin;
  const bool far = p.far || p.prefetch, tail = t.last < kWidth && !p.pack;
  const auto& tiles_by_rows =
      (far ? kTiles<float, true> : kTiles<float>)[tail][static_cast<size_t>(regs - 1)];
  for (int64_t i = begin; i < end;) {
    const int64_t row = p.tiles.at(i), stop = p.c_trans ? std::min(i + 2, end) : end;
    int64_t next = row;
    for (; i < stop; i += t.count) {
      const int64_t top = next;
      t.count = p.prefetch || p.pack_left ? 1 : p.tiles.equal_from(i, stop);
      next = p.tiles.at(i + t.count);
      t.a = p.a + top * p.a_row + from * p.a_k;
      if (p.pack_left) {
        t.a = left + (top - p.tiles.at(first)) * t.k;
        t.a_row = 1, t.a_k = next - top;
      }
      t.c = p.c_trans ? block[top - row] : p.c + top * p.c_ld + col;
      if (p.prefetch) {
        ahead.issue(i - first, tiles);
        const int64_t rows = p.c_trans || i + 1 == end ? 0 : p.tiles.at(i + 2) - next;
        prefetch_result(t.c + (next - top) * p.c_ld, p.c_ld, rows, cols);
      }
      tiles_by_rows[static_cast<size_t>((next - top) / t.count - 1)](t);
    }
    if (p.c_trans) {
      transpose(block[0], t.c_row, next - row, cols, p.c + col * p.c_ld + row, p.c_ld, false);
    }
  }
}

// Packs the tiles [begin, end) of a transposed left operand for k terms, the rows of a term
// contiguous; full-width stores spill over into the next term, which overwrites them. Goes a few
// terms at a time, whose lines stay in L1 for all tiles even if they map to one set.
void pack_left(const Plan& p, int64_t from, int64_t k, int64_t begin, int64_t end, float* to) {
  constexpr int64_t kTerms = 8;
  const int64_t first = p.tiles.at(begin);
  for (int64_t part = 0; part < k; part += kTerms) {
    const int64_t stop = std::min(part + kTerms, k);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t top = p.tiles.at(i), rows = p.tiles.at(i + 1) - top;
      const float* a = p.a + top + (from + part) * p.a_k;
      float* at = to + (top - first) * k + part * rows;
      for (int64_t t = part; t < stop; ++t, a += p.a_k, at += rows) {
        const Reg term = load_n(a, static_cast<int>(rows));
        t + 1 < k ? store(at, term) : store_n(at, term, static_cast<int>(rows));
      }
    }
  }
}

void pack_panel(const Plan& p, int64_t col, int64_t cols, int64_t from, int64_t k, float* to,
                int64_t to_row) {
  if (p.b_trans) return transpose(p.b + col * p.b_ld + from, p.b_ld, cols, k, to, to_row, true);
  const float* b = p.b + from * p.b_ld + col;
  for (; k > 0; --k, b += p.b_ld, to += to_row) {
    int64_t j = 0;
    for (; j + kWidth <= cols; j += kWidth) store(to + j, load(b + j));
    if (j < cols) store(to + j, load_n(b + j, static_cast<int>(cols - j)));
  }
}

// Tiles [begin, end) of panels [first, last) for all terms: this block of C stays in cache.
void run_block(const Plan& p, int64_t first, int64_t last, int64_t begin, int64_t end) {
  alignas(64) float scratch[kScratch], left[kLeft];
  const int64_t depth = p.depth();
  for (int64_t from = 0; from < p.k; from += depth) {
    if (p.pack_left) pack_left(p, from, std::min(depth, p.k - from), begin, end, left);
    for (int64_t i = first; i < last; ++i) {
      const int64_t col = p.panels.at(i) * kWidth, width = p.panels.at(i + 1) * kWidth - col;
      const int64_t cols = std::min(width, p.n - col);
      Tile<float> t{.k = std::min(depth, p.k - from),
                    .a_row = p.a_row,
                    .a_k = p.a_k,
                    .b = p.b + from * p.b_ld + col,
                    .b_k = p.b_ld,
                    .c_row = p.c_trans ? kRegs * kWidth : p.c_ld,
                    .last = static_cast<int>(cols - width + kWidth),
                    .add = p.add || from > 0,
                    .at_end = p.k > kLongestChain && from > 0,
                    .results = p.far};
      if (p.far && i + 1 < last) t.next_b = p.packed ? t.k * width : p.pack ? 0 : width;
      if (p.pack) {
        t.b = p.packed ? p.packed + p.packed_offset(col, from, t.k) : scratch;
        t.b_k = width;
        if (!p.packed) pack_panel(p, col, cols, from, t.k, scratch, width);
      }
      PanelPrefetch ahead;
      if (p.pack && p.prefetch && i + 1 < last) ahead = {p, i + 1, from};
      if (p.pack && p.prefetch && i + 1 == last && from + depth < p.k) {
        ahead = {p, first, from + depth};
      }
      run_panel(p, t, col, static_cast<int>(width / kWidth), from, begin, end, ahead, left);
    }
  }
}

// The same in blocks of C, sized so that L2 holds what several panels read.
void run(const Plan& p, int64_t first, int64_t last, int64_t begin, int64_t end) {
  const int64_t tall = p.pack_left ? kTallCopied : kTall;
  for (int64_t top = begin; top < end; top += tall) {
    const int64_t stop = std::min(top + tall, end);
    const int64_t wide =
        std::max<int64_t>(1, kResults / ((stop - top) * tile_rows(kRegs) * kRegs * kWidth));
    for (int64_t i = first; i < last; i += wide) {
      run_block(p, i, std::min(i + wide, last), top, stop);
    }
  }
}

// --- the choice ----------------------------------------------------------------------------------

int64_t regs_of(int64_t n) { return (n + kWidth - 1) / kWidth; }

// Estimated time relative to the multiplications alone, fitted to measurements on Zen 5: unused
// lanes, and a transposing copy of the right operand, amortised over m rows.
double direct_cost(const Gemm& g) {
  const double lanes = static_cast<double>(regs_of(g.n) * kWidth) / static_cast<double>(g.n);
  return lanes * (1 + (g.trans_b ? 9.0 / static_cast<double>(g.m) : 0.0));
}

// The same for computing C^T, whose tiles are transposed before they are stored.
double swapped_cost(const Gemm& g) {
  const int64_t regs = regs_of(g.m);
  const Split panels(regs, kRegs);
  if (g.n < tile_rows(kRegs) || g.k > kLongestChain ||
      (!g.trans_a && g.k * panels.widest() * kWidth > kScratch)) {
    return std::numeric_limits<double>::infinity();
  }
  const double lanes = static_cast<double>(regs * kWidth) / static_cast<double>(g.m);
  return lanes * (regs == 1 ? 1.2 : 1.0) *
         (1 + (g.trans_a ? 0.0 : 9.0 / static_cast<double>(g.n)) + 12.0 / static_cast<double>(g.k));
}

// Whether to pack a right operand that is not transposed.
bool far_apart(const Gemm& g) {
  if (g.trans_a && kWidth == 16) return g.ldb > kFarApart && g.ldb % kSharedSets == 0;
  return g.k > kFarRows || g.k * g.ldb > kFarElements;
}

Plan plan_for(const Gemm& g) {
  // C^T is transposed only when it is stored, so its sums cannot start from C.
  const bool swap = !g.add && swapped_cost(g) < direct_cost(g);
  const Gemm s = swap ? swapped(g) : g;
  const bool flat = !swap && (g.m <= kFlatRows || g.k <= kFlatTerms);
  const Split panels(regs_of(s.n), flat ? kFlatRegs : kRegs);
  Plan p{.n = s.n,
         .k = s.k,
         .a = static_cast<const float*>(s.a),
         .a_row = s.trans_a ? 1 : s.lda,
         .a_k = s.trans_a ? s.lda : 1,
         .b = static_cast<const float*>(s.b),
         .b_ld = s.ldb,
         .b_trans = s.trans_b,
         .pack = s.trans_b || (!swap && g.m >= 64 && far_apart(g)),
         .packed = static_cast<const float*>(g.packed),
         .c_trans = swap,
         .c = static_cast<float*>(g.c),
         .c_ld = g.ldc,
         .panels = panels,
         .tiles{s.m, tile_rows(static_cast<int>(panels.widest()))},
         .add = g.add,
         .prefetch = !g.packed && g.n * g.k > kDistant};
  p.pack_left = kCopiesLeft && !swap && g.trans_a && panels.count > kFewPanels &&
                g.lda >= kFarApart && g.lda % kSharedSets == 0;
  p.far = !p.prefetch && g.n * (g.k + g.m) > kFar;
  return p;
}

}  // namespace

bool use_small_gemm(const Gemm& g) {
#ifdef __FMA__
  if (g.dtype != kFloat32) return false;
  if (kWidth == 16) return true;
  // With 256-bit vectors OpenBLAS is up to 1.25 times as fast as ours at large sizes, ours 1.02 to
  // 4 times as fast at others. Our blocks are sized for an L2 cache of 1 MB.
  static const bool large_l2 = sysconf(_SC_LEVEL2_CACHE_SIZE) >= 1 << 20;
  return multiplications(g) < (large_l2 ? 0x1p29 : 0x1p26);
#else
  return g.m < 0;  // Never: without FMA instructions the sums would be correct but slow.
#endif
}

// A contiguous column C = A^T b is computed as the row C^T = b^T A.
static bool is_row(const Gemm& g) {
  return g.n == 1 && g.ldc == 1 && g.trans_a && g.m > 1 && !g.packed;
}
static Gemm as_row(const Gemm& g) {
  Gemm row = swapped(g);
  row.ldc = row.n;
  return row;
}

void small_gemm(const Gemm& g) {
  if (has_few_rows(g)) return few_gemm(g);
  if (is_row(g)) return small_gemm(as_row(g));
  const Plan p = plan_for(g);
  const int64_t panels = p.panels.count, tiles = p.tiles.count;
  // A thread gets at least 2^19 multiplications, about 4 us.
  const double worth = 0x1p19 / multiplications(g);
  const auto grain = [&](int64_t units) {
    return std::max<int64_t>(1, static_cast<int64_t>(worth * static_cast<double>(units)));
  };
  // Split across panels if there are enough: threads that share a panel each pack a copy of it.
  if (panels >= tiles || (p.pack && panels >= 2 * num_threads())) {
    parallel_for(panels, grain(panels),
                 [&](int64_t begin, int64_t end) { run(p, begin, end, 0, tiles); });
  } else {
    parallel_for(tiles, grain(tiles),
                 [&](int64_t begin, int64_t end) { run(p, 0, panels, begin, end); });
  }
}

void small_gemm(const Gemm& first, int64_t n, const int64_t* at) {
  Plan p = plan_for(first);
  const float *a = p.a, *b = p.b;
  float* c = p.c;
  for (int64_t i = 0; i < n; ++i, at += 3) {
    p.a = a + at[p.c_trans ? 1 : 0];
    p.b = b + at[p.c_trans ? 0 : 1];
    p.c = c + at[2];
    run(p, 0, p.panels.count, 0, p.tiles.count);
  }
}

}  // namespace brrr::cpu

namespace brrr::host {

using namespace cpu;

bool is_chain(const Gemm& g) {
  return g.m > 0 && g.n > 0 && g.k > 0 && g.k <= kLongestChain && use_small_gemm(g);
}

int64_t packed_right_bytes(const Gemm& g) {
  if (!is_chain(g) || has_few_rows(g)) return 0;
  const Plan p = plan_for(g);
  if (!p.pack || p.c_trans) return 0;
  return p.packed_offset(0, p.k, 0) * static_cast<int64_t>(sizeof(float));
}

void pack_right(const Gemm& g, void* to) {
  const Plan p = plan_for(g);
  parallel_for(p.panels.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t from = 0; from < p.k; from += p.depth()) {
      const int64_t k = std::min(p.depth(), p.k - from);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t col = p.panels.at(i) * kWidth, width = p.panels.at(i + 1) * kWidth - col;
        if (i + 1 < end) PanelPrefetch(p, i + 1, from).issue(0, 1);
        pack_panel(p, col, std::min(width, p.n - col), from, k,
                   static_cast<float*>(to) + p.packed_offset(col, from, k), width);
      }
    }
  });
}

}  // namespace brrr::host
