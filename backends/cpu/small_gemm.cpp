#include "backends/cpu/small_gemm.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "backends/cpu/pool.h"
#include "ops/vec.h"
#include "ops/vec_math.h"

namespace brrr::cpu {

namespace {

// --- one hardware register -----------------------------------------------------------------------

using Reg = vx::Part<float>::type;
constexpr int kWidth = BRRR_VX_BYTES / 4;

BRRR_VX Reg load(const float* p) {
  Reg r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}

BRRR_VX void store(float* p, Reg v) {
  __builtin_memcpy(p, &v, sizeof v);
}

BRRR_VX Reg splat(float x) {
  return x - Reg{};
}  // Exact for every x: compilers broadcast.
BRRR_VX Reg fma(Reg a, Reg b, Reg c) {
#if BRRR_VX_BYTES == 64
  return vx::fma(a, b, c);
#elif BRRR_VX_BYTES == 32 && defined(__FMA__)
  return __builtin_ia32_vfmaddps256(a, b, c);
#else
  for (int i = 0; i < kWidth; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

// The first n lanes; the others are zero and their memory is not touched.
#if BRRR_VX_BYTES == 32
BRRR_VX vx::i32x8 mask(int n) {
  return vx::i32x8{0, 1, 2, 3, 4, 5, 6, 7} < n;
}
BRRR_VX Reg load_n(const float* p, int n) {
  return __builtin_ia32_maskloadps256(reinterpret_cast<const Reg*>(p), mask(n));
}
BRRR_VX void store_n(float* p, Reg v, int n) {
  __builtin_ia32_maskstoreps256(reinterpret_cast<Reg*>(p), mask(n), v);
}
#else
BRRR_VX Reg load_n(const float* p, int n) {
  return vx::load_first<Reg>(p, n);
}
BRRR_VX void store_n(float* p, Reg v, int n) {
  vx::store_first(p, v, n);
}
#endif

// --- the tile ------------------------------------------------------------------------------------

// A tile keeps rows x regs sums in registers; on top come regs of B and a broadcast element of A.
// Two FMAs a cycle of four cycles' latency need eight sums at least.
constexpr int kRows = BRRR_VX_BYTES == 64 ? 8 : 6, kRegs = BRRR_VX_BYTES == 64 ? 3 : 2;
constexpr int kFlatRows = BRRR_VX_BYTES == 64 ? 2 : 3, kFlatRegs = BRRR_VX_BYTES == 64 ? 8 : 4;

// The left operand by strides (so a transpose costs nothing), the right one by rows of contiguous
// elements. `last` lanes of the last register are columns of C.
struct Tile {
  int64_t k;
  const float* a = nullptr;
  int64_t a_row, a_k;
  const float* b;
  int64_t b_k;
  float* c = nullptr;
  int64_t c_row;
  int last;
  bool add;  // Go on from what C holds.
};

template <int rows, int regs, bool tail> void run_tile(const Tile& t) {
  Reg sum[rows][regs];
  const float* row[rows];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    row[i] = i == 0 ? t.a : row[i - 1] + t.a_row;
    const float* c = t.c + i * t.c_row;
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      const float* at = c + j * kWidth;
      sum[i][j] = !t.add ? Reg{} : j + 1 < regs ? load(at) : load_n(at, t.last);
    }
  }
  const float* b = t.b;
  const int64_t a_k = t.a_k, b_k = t.b_k;
  const int last = t.last;
  for (int64_t k = t.k, at = 0; k > 0; --k, at += a_k, b += b_k) {
    Reg right[regs];
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      right[j] = tail && j + 1 == regs ? load_n(b + j * kWidth, last) : load(b + j * kWidth);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const Reg left = splat(row[i][at]);
#pragma GCC unroll 8
      for (int j = 0; j < regs; ++j) sum[i][j] = fma(left, right[j], sum[i][j]);
    }
  }
  float* c = t.c;
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i, c += t.c_row) {
#pragma GCC unroll 8
    for (int j = 0; j < regs; ++j) {
      if (j + 1 < regs || last == kWidth) {
        store(c + j * kWidth, sum[i][j]);
      } else {
        store_n(c + j * kWidth, sum[i][j], last);
      }
    }
  }
}

using TileFn = void (*)(const Tile&);

template <bool tail, int rows, int... regs>
constexpr std::array<TileFn, kFlatRegs> tile_row(std::integer_sequence<int, regs...>) {
  return {run_tile<rows, regs + 1, tail>...};
}

template <bool tail, int... row>
constexpr std::array<std::array<TileFn, kFlatRegs>, kRows> tiles(
    std::integer_sequence<int, row...>) {
  return {tile_row<tail, row + 1>(std::make_integer_sequence < int,
                                  row<kFlatRows ? kFlatRegs : kRegs>{})...};
}

constexpr auto kTiles = tiles<false>(std::make_integer_sequence<int, kRows>{});
constexpr auto kTailTiles = tiles<true>(std::make_integer_sequence<int, kRows>{});

// --- transposition -------------------------------------------------------------------------------

// Lane l of the result, as an index into the lanes of a and then those of b.
enum class Mix { Floats, Pairs, Halves, Quads };
template <Mix mix, int part> constexpr int mixed(int l) {
  const int quad = l / 4 * 4;
  switch (mix) {
    case Mix::Floats:
      return quad + l % 4 / 2 + 2 * part + l % 2 * kWidth;
    case Mix::Pairs:
      return quad + l % 2 + 2 * part + l % 4 / 2 * kWidth;
    case Mix::Halves:
      return l % (kWidth / 2) + kWidth / 2 * (part + l / (kWidth / 2) * 2);
    default:
      return l % 4 + 4 * part + quad % 8 * 2 + l / 8 * kWidth;
  }
}

template <Mix mix, int part, int... l>
BRRR_VX Reg shuffle(Reg a, Reg b, std::integer_sequence<int, l...>) {
  return __builtin_shufflevector(a, b, mixed<mix, part>(l)...);
}

template <Mix mix> BRRR_VX void exchange(Reg& a, Reg& b) {
  constexpr std::make_integer_sequence<int, kWidth> all{};
  const Reg low = shuffle<mix, 0>(a, b, all);
  b = shuffle<mix, 1>(a, b, all);
  a = low;
}

// Within each four lanes first, then the fours among each other: r[c] becomes column c.
template <int width> BRRR_VX void transpose(Reg (&r)[width]) {
#pragma GCC unroll 16
  for (int i = 0; i < width; i += 4) {
    exchange<Mix::Floats>(r[i], r[i + 1]);
    exchange<Mix::Floats>(r[i + 2], r[i + 3]);
    exchange<Mix::Pairs>(r[i], r[i + 2]);
    exchange<Mix::Pairs>(r[i + 1], r[i + 3]);
    std::swap(r[i + 1], r[i + 2]);
  }
  if constexpr (width >= 8) {
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i) {
      if (i % 8 < 4) exchange<Mix::Halves>(r[i], r[i + 4]);
    }
  }
  if constexpr (width == 16) {
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) exchange<Mix::Quads>(r[i], r[i + 8]);
#pragma GCC unroll 16
    for (int i = 4; i < 8; ++i) std::swap(r[i], r[i + 4]);
  }
}

// to[c][r] = from[r][c]. With `pad` whole registers are written, zeros after the last row.
void transpose(const float* from, int64_t from_row, int64_t rows, int64_t cols, float* to,
               int64_t to_row, bool pad) {
  for (int64_t i = 0; i < rows; i += kWidth) {
    const int height = static_cast<int>(std::min<int64_t>(kWidth, rows - i));
    for (int64_t j = 0; j < cols; j += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, cols - j));
      const float* src = from + i * from_row + j;
      Reg r[kWidth];
      if (height == kWidth && width == kWidth) {
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) r[c] = load(src + c * from_row);
      } else {
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) {
          r[c] = c < height ? load_n(src + c * from_row, width) : Reg{};
        }
      }
      transpose(r);
      float* dst = to + j * to_row + i;
      if (width == kWidth && (pad || height == kWidth)) {
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) store(dst + c * to_row, r[c]);
      } else {
        const int lanes = pad ? kWidth : height;
#pragma GCC unroll 16
        for (int c = 0; c < kWidth; ++c) {
          if (c < width) store_n(dst + c * to_row, r[c], lanes);
        }
      }
    }
  }
}

// --- the walk over tiles -------------------------------------------------------------------------

constexpr int64_t kScratch = 32 * 1024;  // Floats on the stack: a panel of the right operand.
constexpr int64_t kDepth = 256;          // Rows of a packed panel that a cache holds.
static_assert(kDepth * kFlatRegs * kWidth <= kScratch);
// More rows than these are better read from a copy, the sooner the narrower the panel is.
constexpr int64_t kFarRows = kWidth == 16 ? 512 : 128;

// `size` units in `count` parts, equal up to one unit.
struct Split {
  int64_t count, least, longer;
  Split(int64_t size, int64_t most)
      : count((size + most - 1) / most), least(size / count), longer(size % count) {}
  int64_t at(int64_t i) const { return i * least + std::min(i, longer); }
};

// C or, if that is cheaper to read, its transpose: C^T = op(B)^T op(A)^T.
struct Plan {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_k;
  const float* b;
  int64_t b_ld;
  bool b_trans;  // Element (k, j) of the right operand is b[j * b_ld + k], else b[k * b_ld + j].
  bool pack;     // Copy a panel of the right operand so that its columns are contiguous.
  bool c_trans;  // Element (i, j) goes to c[j * c_ld + i], else c[i * c_ld + j].
  float* c;
  int64_t c_ld;
  Split panels, tiles;  // Across, in registers; down, in rows.
};

// The tiles [begin, end) of one panel for the terms [from, from + t.k) of the sums.
void run_panel(const Plan& p, Tile t, int64_t col, int regs, int64_t from, int64_t begin,
               int64_t end) {
  alignas(64) float block[2 * kRows][kRegs * kWidth];
  const int64_t cols = (regs - 1) * kWidth + t.last;
  const auto& table = t.last < kWidth && !p.pack ? kTailTiles : kTiles;
  for (int64_t i = begin; i < end;) {
    const int64_t row = p.tiles.at(i), stop = p.c_trans ? std::min(i + 2, end) : i + 1;
    int64_t next = row;
    for (; i < stop; ++i) {
      const int64_t top = next;
      next = p.tiles.at(i + 1);
      t.a = p.a + top * p.a_row + from * p.a_k;
      t.c = p.c_trans ? block[top - row] : p.c + top * p.c_ld + col;
      table[static_cast<size_t>(next - top - 1)][static_cast<size_t>(regs - 1)](t);
    }
    if (p.c_trans) {
      transpose(block[0], t.c_row, next - row, cols, p.c + col * p.c_ld + row, p.c_ld, false);
    }
  }
}

void pack_panel(const Plan& p, int64_t col, int64_t cols, int64_t from, int64_t k, float* to,
                int64_t to_row) {
  if (p.b_trans) {
    return transpose(p.b + col * p.b_ld + from, p.b_ld, cols, k, to, to_row, true);
  }
  const float* b = p.b + from * p.b_ld + col;
  for (; k > 0; --k, b += p.b_ld, to += to_row) {
    int64_t j = 0;
    for (; j + kWidth <= cols; j += kWidth) store(to + j, load(b + j));
    if (j < cols) store(to + j, load_n(b + j, static_cast<int>(cols - j)));
  }
}

// Panels [first, last), of each the tiles [begin, end).
void run(const Plan& p, int64_t first, int64_t last, int64_t begin, int64_t end) {
  alignas(64) float scratch[kScratch];
  const int64_t depth = p.pack && !p.c_trans ? kDepth : p.k;
  for (int64_t i = first; i < last; ++i) {
    const int64_t col = p.panels.at(i) * kWidth, width = p.panels.at(i + 1) * kWidth - col;
    const int64_t cols = std::min(width, p.n - col);
    for (int64_t from = 0; from < p.k; from += depth) {
      Tile t{.k = std::min(depth, p.k - from),
             .a_row = p.a_row,
             .a_k = p.a_k,
             .b = p.b + from * p.b_ld + col,
             .b_k = p.b_ld,
             .c_row = p.c_trans ? kRegs * kWidth : p.c_ld,
             .last = static_cast<int>(cols - width + kWidth),
             .add = from > 0};
      if (p.pack) {
        pack_panel(p, col, cols, from, t.k, scratch, width);
        t.b = scratch;
        t.b_k = width;
      }
      run_panel(p, t, col, static_cast<int>(width / kWidth), from, begin, end);
    }
  }
}

// --- the choice ----------------------------------------------------------------------------------

int64_t regs_of(int64_t n) {
  return (n + kWidth - 1) / kWidth;
}

double multiplications(const Gemm& g) {
  return static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
}

// Time relative to that of the bare multiplications, fitted to measurements on Zen 5: lanes
// without a column, a transposing copy of the right operand for each `m` rows.
double direct_cost(const Gemm& g) {
  const double lanes = static_cast<double>(regs_of(g.n) * kWidth) / static_cast<double>(g.n);
  return lanes * (1 + (g.trans_b ? 9.0 / static_cast<double>(g.m) : 0.0));
}

// Of computing C^T, whose tiles are transposed on the way out.
double swapped_cost(const Gemm& g) {
  const int64_t regs = regs_of(g.m);
  const Split panels(regs, kRegs);
  const int64_t widest = panels.least + (panels.longer > 0);
  if (g.n < kRows || (!g.trans_a && g.k * widest * kWidth > kScratch)) {
    return std::numeric_limits<double>::infinity();
  }
  const double lanes = static_cast<double>(regs * kWidth) / static_cast<double>(g.m);
  return lanes * (regs == 1 ? 1.2 : 1.0) *
         (1 + (g.trans_a ? 0.0 : 9.0 / static_cast<double>(g.n)) + 12.0 / static_cast<double>(g.k));
}

Plan plan_for(const Gemm& g) {
  const bool swap = swapped_cost(g) < direct_cost(g);
  const int64_t m = swap ? g.n : g.m, n = swap ? g.m : g.n;
  Plan p{.m = m,
         .n = n,
         .k = g.k,
         .a = static_cast<const float*>(g.a),
         .a_row = g.trans_a ? 1 : g.lda,
         .a_k = g.trans_a ? g.lda : 1,
         .b = static_cast<const float*>(g.b),
         .b_ld = g.ldb,
         .b_trans = g.trans_b,
         .pack = g.trans_b || (g.k > kFarRows && g.m >= 64),
         .c_trans = swap,
         .c = static_cast<float*>(g.c),
         .c_ld = g.ldc,
         .panels{regs_of(n), m > kFlatRows || swap ? kRegs : kFlatRegs},
         .tiles{m, kRows}};
  if (swap) {
    std::swap(p.a, p.b);
    p.a_row = g.trans_b ? g.ldb : 1, p.a_k = g.trans_b ? 1 : g.ldb;
    p.b_ld = g.lda, p.b_trans = p.pack = !g.trans_a;
  }
  return p;
}

}  // namespace

bool small_gemm_wins(const Gemm& g) {
#ifdef __FMA__
  // OpenBLAS is good at four rows; at large sizes its blocking for the caches pays.
  constexpr double kLarge = kWidth == 16 ? 0x1p30 : 0x1p27;
  if (g.dtype != kFloat32 || g.m == 4 || g.k > 1024 || multiplications(g) > kLarge) return false;
  const double cost = std::min(direct_cost(g), swapped_cost(g));
  if (g.trans_b && !g.trans_a) return cost < (g.k < 32 ? 2.0 : 1.3);
  return g.k >= 16 && cost < 1.1;
#else
  return g.m < 0;  // Without the instruction the sums would be right and slow.
#endif
}

void small_gemm(const Gemm& g) {
  const Plan p = plan_for(g);
  const int64_t panels = p.panels.count, tiles = p.tiles.count;
  // A thread starts for half a million multiplications, some four microseconds.
  const double worth = 0x1p19 / multiplications(g);
  const auto grain = [&](int64_t units) {
    return std::max<int64_t>(1, static_cast<int64_t>(worth * static_cast<double>(units)));
  };
  // Threads that share a panel pack it each for itself.
  if (panels >= tiles || (p.pack && panels >= 2 * num_threads())) {
    parallel_for(panels, grain(panels),
                 [&](int64_t begin, int64_t end) { run(p, begin, end, 0, tiles); });
  } else {
    parallel_for(tiles, grain(tiles),
                 [&](int64_t begin, int64_t end) { run(p, 0, panels, begin, end); });
  }
}

}  // namespace brrr::cpu
