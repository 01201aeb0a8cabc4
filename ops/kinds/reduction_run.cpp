// The CPU driver of reduction rows: cuts the input into parts, folds them in order, on all threads.
#include <algorithm>
#include <utility>

#include "core/backend.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/reduction.h"
#include "ops/kinds/reduction_layout.h"

namespace brrr {

namespace {

constexpr int64_t kGrain = 1 << 17;   // Elements that justify a thread: at best 5 us.
constexpr int64_t kColumnTile = 512;  // Columns whose accumulators stay in the L1 cache.
constexpr int64_t kBadPitch = 256, kPitchPad = 16;  // Multiples conflict in the cache: pad them.
constexpr int64_t kTransposedTile = 32;             // The column tile of a transposed input.
constexpr int64_t kInPlaceRow = 256;  // Rows this long are read in place where they can be.
constexpr int64_t kMinUnits = 16;     // Fewer column tiles are split into row blocks, for threads.

// A layout with the CPU's kernels and the addresses of the results.
struct Layout : ReductionLayout {
  using ReductionLayout::ReductionLayout;
  const ReductionKernels* kernels;
  const ReductionFolds* fold;  // The kernels' folds of elements, or results.
  char* acc;                   // Results in the compute type.
  char* out;                   // The call's output: `acc`, or converted at the end.
  DType out_dtype;

  int64_t width() const { return static_cast<int64_t>(itemsize(compute)); }
  bool folds_in_place() const { return direct && dtype == compute; }
  // If direct: elements from one row (of all outer * rows) to the next.
  int64_t stride() const { return cols ? row_stride : outer_stride; }
  const char* at(int64_t row, int64_t col) const {
    const int64_t n = cols ? rows : 1,
                  element = row / n * outer_stride + row % n * row_stride + col;
    return base + element * static_cast<int64_t>(itemsize(dtype));
  }
};

// Rows [row, row + rows) of one outer index, columns [col, col + cols).
struct ColumnPart {
  int64_t row, rows, col, cols;
};

// Elements reordered and converted to the compute type. A transposed input is worth reading in
// large parts, one of which fits into the L2 cache.
struct Tile {
  alignas(64) char data[kReduceChunk * 32];
  int64_t most;
  explicit Tile(const Layout& l)
      : most(l.strided ? static_cast<int64_t>(sizeof data) / l.width() : kReduceChunk) {}
  // Direct rows are packed one after the other.
  void load(const Layout& l, int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t pitch) {
    if (!l.direct) return l.elements->load(l.base, l.compute, row, rows, col, cols, data, pitch);
    const char* from = l.at(row, col);
    const int64_t step = l.stride() * static_cast<int64_t>(itemsize(l.dtype));
    if (l.stride() == cols) cols *= std::exchange(rows, 1);
    for (int64_t r = 0; r < rows; ++r, from += step) {
      load_tile(l.compute, data + r * cols * l.width(), l.dtype, from, 1, cols);
    }
  }
  // The address of a part of a row: in the input if it can be used there, else loaded.
  const char* part(const Layout& l, int64_t row, int64_t col, int64_t cols) {
    if (l.folds_in_place()) return l.at(row, col);
    if (l.elements && l.dtype == l.compute) {
      if (const char* found = l.elements->find(l.base, row, col, cols)) return found;
    }
    load(l, row, 1, col, cols, cols);
    return data;
  }
};

void finish_range(const Layout& l, int64_t begin, int64_t n) {
  char* acc = l.acc + begin * l.width();
  if (l.kernels->finish) l.kernels->finish(acc, n, l.count);
  if (l.out == l.acc) return;
  char* out = l.out + begin * static_cast<int64_t>(itemsize(l.out_dtype));
  store_tile(l.out_dtype, out, 1, l.compute, acc, n);
}

// to[r] = the fold of row begin + r; rows have at most a chunk of elements.
void run_rows(const Layout& l, int64_t begin, int64_t n, char* to) {
  if (l.folds_in_place()) {
    return l.fold->rows(l.at(begin, 0), l.outer_stride, l.rows, n, to);
  }
  Tile tile(l);
  const int64_t pitch = !l.strided || l.rows % kBadPitch ? l.rows : l.rows + kPitchPad;
  int64_t batch = std::max<int64_t>(1, tile.most / pitch);
  if (batch > kTransposedRows) batch -= batch % kTransposedRows;
  if (l.rows >= kInPlaceRow && !l.strided) batch = 1;
  for (int64_t r = 0; r < n; r += batch) {
    const int64_t m = std::min(batch, n - r);
    if (m == 1) {
      l.fold->rows(tile.part(l, begin + r, 0, l.rows), 0, l.rows, 1, to + r * l.width());
      continue;
    }
    tile.load(l, begin + r, m, 0, l.rows, pitch);
    l.fold->rows(tile.data, pitch, l.rows, m, to + r * l.width());
  }
}

// to[i] = the fold of chunk begin + i; chunks are numbered over all rows, `chunks` to a row.
void run_chunks(const Layout& l, int64_t chunks, int64_t begin, int64_t end, char* to) {
  Tile tile(l);
  for (int64_t u = begin, n; u < end; u += n) {
    const int64_t row = u / chunks, chunk = u % chunks, from = chunk * kReduceChunk;
    n = std::min({end - u, chunks - chunk, tile.most / kReduceChunk});
    const char* p = tile.part(l, row, from, std::min(n * kReduceChunk, l.rows - from));
    for (int64_t i = 0; i < n; ++i, to += l.width()) {
      const int64_t at = i * kReduceChunk, length = std::min(kReduceChunk, l.rows - from - at);
      l.fold->rows(p + at * l.width(), 0, length, 1, to);
    }
  }
}

// Rows adjacent in memory (a transposed input): one accumulator lane of all these rows is a fold of
// a few columns, and so is the combination of lanes.
constexpr int64_t kLanes = 4 * vx::lanes, kLaneBytes = 32 << 10, kLaneElements = 2 * kLanes;

// Folds elements [from, from + n) of `rows` rows into their lanes.
void fold_lanes(const Layout& l, int64_t row, int64_t rows, int64_t from, int64_t n, char* lanes) {
  const auto item = static_cast<int64_t>(itemsize(l.dtype)), line = rows * l.width();
  const char* p = l.base + (from * l.col_step + row) * item;
  const auto fold = [&](const char* at, int64_t step, int64_t count, bool first) {
    for (int64_t k = 0; k < std::min(kLanes, count); ++k) {
      l.fold->columns(at + k * step * l.width(), kLanes * step, (count - k - 1) / kLanes + 1, rows,
                      first, lanes + k * line);
    }
  };
  if (l.dtype == l.compute) return fold(p, l.col_step, n, true);
  alignas(64) char converted[kLaneBytes * 2];
  for (int64_t i = 0; i < n; i += kLaneElements) {
    const int64_t m = std::min(kLaneElements, n - i);
    for (int64_t k = 0; k < m; ++k) {
      load_tile(l.compute, converted + k * line, l.dtype, p + (i + k) * l.col_step * item, 1, rows);
    }
    fold(converted, rows, m, i == 0);
  }
}

// to[r * chunks] = the fold of chunk `chunk` of row `row` + r, for all `rows` rows at once.
void run_lanes(const Layout& l, int64_t row, int64_t rows, int64_t chunk, int64_t chunks,
               char* to) {
  alignas(64) char lanes[kLaneBytes];
  const int64_t from = chunk * kReduceChunk, n = std::min(kReduceChunk, l.rows - from);
  fold_lanes(l, row, rows, from, n, lanes);
  // Skip lanes that no element reaches: they would hold an identity.
  const auto add = [&](int64_t first, int64_t other, int64_t count) {
    count = std::clamp<int64_t>(n - other, 0, count);
    if (count == 0) return;
    const int64_t line = rows * l.width();
    l.kernels->results.columns(lanes + other * line, 0, 1, count * rows, false,
                               lanes + first * line);
  };
  constexpr int64_t width = vx::lanes;
  add(0, width, width);
  add(2 * width, 3 * width, width);
  add(0, 2 * width, width);
  for (int64_t by = width / 2; by > 0; by /= 2) add(0, by, by);
  store_tile(l.compute, to, chunks, l.compute, lanes, rows);
}

void drive_lanes(const Layout& l, int64_t chunks, char* to) {
  // As many rows at once as keep their accumulators in the L1 cache.
  const int64_t most = std::min(kColumnTile, kLaneBytes / l.width() / std::min(kLanes, l.rows));
  const int64_t tiles = (l.outer - 1) / most + 1;
  const int64_t elements = most * std::min(kReduceChunk, l.rows);
  parallel_for(tiles * chunks, std::max<int64_t>(1, kGrain / elements),
               [&](int64_t begin, int64_t end) {
                 for (int64_t u = begin; u < end; ++u) {
                   const int64_t chunk = u % chunks, row = u / chunks * most;
                   const int64_t rows = std::min(most, l.outer - row);
                   run_lanes(l, row, rows, chunk, chunks, to + (row * chunks + chunk) * l.width());
                   if (chunks == 1) finish_range(l, row, rows);
                 }
               });
}

// Each turn reduces one level of chunks, until a row is a single chunk.
void drive_rows(Layout& l) {
  Tensor partials, previous;
  while (l.rows > kReduceChunk) {
    const int64_t chunks = (l.rows + kReduceChunk - 1) / kReduceChunk;
    previous = std::move(partials);
    partials = raw_empty({l.outer * chunks}, l.compute, Device{});
    char* to = partials.impl()->data();
    if (l.col_step) {
      drive_lanes(l, chunks, to);
    } else {
      parallel_for(l.outer * chunks, kGrain / kReduceChunk, [&](int64_t begin, int64_t end) {
        run_chunks(l, chunks, begin, end, to + begin * l.width());
      });
    }
    l.base = to;
    l.dtype = l.compute;
    l.direct = true;
    l.col_step = 0;
    l.rows = l.outer_stride = chunks;
    l.fold = &l.kernels->results;
  }
  if (l.col_step) return drive_lanes(l, 1, l.acc);
  const int64_t grain = std::max<int64_t>(1, kGrain / l.rows);
  parallel_for(l.outer, grain, [&](int64_t begin, int64_t end) {
    run_rows(l, begin, end - begin, l.acc + begin * l.width());
    finish_range(l, begin, end - begin);
  });
}

// to[cols] = the results of the part's blocks, combined in order.
void run_columns(const Layout& l, ColumnPart p, char* to) {
  alignas(64) char block[kColumnTile * 8];
  Tile tile(l);
  const int64_t begin = p.row, end = p.row + p.rows, fit = tile.most / p.cols;
  // Rows to read at once: whole blocks, or a part of one.
  const int64_t read =
      fit < kReduceBlock ? tile.most / kColumnTile : fit / kReduceBlock * kReduceBlock;
  const int64_t step = std::min(read, kReduceBlock);
  for (; p.row < end; p.row += kReduceBlock) {
    char* const sum = p.row == begin ? to : block;
    p.rows = std::min(kReduceBlock, end - p.row);
    if (l.folds_in_place()) {
      l.fold->columns(l.at(p.row, p.col), l.row_stride, p.rows, p.cols, true, sum);
    } else {
      for (int64_t r = 0; r < p.rows; r += step) {
        const int64_t row = p.row + r, at = (row - begin) % read;
        if (at == 0) tile.load(l, row, std::min(read, end - row), p.col, p.cols, p.cols);
        l.fold->columns(tile.data + at * p.cols * l.width(), p.cols, std::min(step, p.rows - r),
                        p.cols, r == 0, sum);
      }
    }
    if (sum == block) l.kernels->results.columns(block, 0, 1, p.cols, false, to);
  }
}

int64_t column_tile(const ReductionLayout& l) { return l.strided ? kTransposedTile : kColumnTile; }
int64_t column_tiles(const ReductionLayout& l) { return (l.cols - 1) / column_tile(l) + 1; }

// Few columns of many rows are split into blocks of rows for the threads.
int64_t column_parts(const ReductionLayout& l) {
  const bool few = l.outer * column_tiles(l) < kMinUnits && l.outer * l.rows * l.cols > kGrain;
  return few ? (l.rows + kReduceBlock - 1) / kReduceBlock : 1;
}

void drive_columns(const Layout& l) {
  const int64_t tiles = column_tiles(l), parts = column_parts(l), units = l.outer * parts * tiles;
  const int64_t height = parts > 1 ? kReduceBlock : l.rows, row = l.cols * l.width();
  Tensor partials;
  char* to = l.acc;
  if (parts > 1) {
    partials = raw_empty({l.outer * parts * l.cols}, l.compute, Device{});
    to = partials.impl()->data();
  }
  const int64_t grain = std::max<int64_t>(1, kGrain * units / (l.outer * l.rows * l.cols));
  parallel_for(units, grain, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t part = u / tiles, r = part % parts * height;
      const int64_t c = u % tiles * column_tile(l), n = std::min(column_tile(l), l.cols - c);
      run_columns(l, {part / parts * l.rows + r, std::min(height, l.rows - r), c, n},
                  to + part * row + c * l.width());
      if (parts == 1) finish_range(l, part * l.cols + c, n);
    }
  });
  if (parts == 1) return;
  for (int64_t o = 0; o < l.outer; ++o) {
    const char* p = to + o * parts * row;
    l.kernels->results.columns(p, l.cols, parts, l.cols, true, l.acc + o * row);
  }
  finish_range(l, 0, l.outer * l.cols);
}

}  // namespace

// Partial results (of each level of chunks), and the result before it is rounded.
int64_t reduction_scratch(const OpCall& c) {
  const TensorImpl& y = *c.out[0].impl();
  if (y.numel == 0) return 0;
  const ReductionLayout l(c);
  const auto item = static_cast<int64_t>(itemsize(l.compute));
  int64_t bytes = y.dtype != l.compute ? scratch_for(y.numel, item) : 0;
  if (l.cols) {
    const int64_t parts = column_parts(l);
    return bytes + (parts > 1 ? scratch_for(l.outer * parts * l.cols, item) : 0);
  }
  for (int64_t rows = l.rows; rows > kReduceChunk;) {
    rows = (rows + kReduceChunk - 1) / kReduceChunk;
    bytes += scratch_for(l.outer * rows, item);
  }
  return bytes;
}

void reduction_run(OpCall& c) {
  const TensorImpl& y = *c.out[0].impl();
  if (y.numel == 0) return;
  Layout l(c);
  l.base = c.in[0]->data();
  l.kernels = &c.op->reduction->kernels[compute_index(l.compute)];
  l.fold = &l.kernels->elements;
  l.out = l.acc = y.data();
  l.out_dtype = y.dtype;
  Tensor results;
  if (y.dtype != l.compute) {
    results = raw_empty({y.numel}, l.compute, y.device);
    l.acc = results.impl()->data();
  }
  if (l.count == 0) {  // Rows of no elements: any address will do.
    l.fold->rows(l.acc, 0, 0, y.numel, l.acc);
    finish_range(l, 0, y.numel);
  } else if (l.cols) {
    drive_columns(l);
  } else {
    drive_rows(l);
  }
}

}  // namespace brrr
