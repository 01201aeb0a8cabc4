#include "ops/kinds/strided_matrix.h"

#include <algorithm>

#include "ops/kinds/merge_dims.h"
#include "ops/vocabulary/convert.h"
#include "ops/vocabulary/transpose.h"

namespace brrr {

void load_transposed_block(DType ct, char* to, int64_t pitch, DType dtype, const char* from,
                           int64_t stride, int64_t rows, int64_t n) {
  alignas(64) char columns[kTransposeBlock * 8];
  const auto item = static_cast<int64_t>(itemsize(dtype)),
             width = static_cast<int64_t>(itemsize(ct));
  if (dtype != ct) {
    for (int64_t i = 0; i < n; ++i) {
      load_tile(ct, columns + i * rows * width, dtype, from + i * stride * item, 1, rows);
    }
    from = columns;
    stride = rows;
  }
  const auto turn = [&](auto element) {
    using T = decltype(element);
    tile::transpose(reinterpret_cast<const T*>(from), stride, n, rows, reinterpret_cast<T*>(to),
                    pitch, false);
  };
  width == 1   ? turn(uint8_t{})
  : width == 2 ? turn(uint16_t{})
  : width == 4 ? turn(float{})
               : turn(double{});
}

// A range of indices in each dim, with the strides of the elements and of their copies.
struct StridedMatrix::Box {
  int ndim = 0;
  int64_t size[kMaxDims + 1], in[kMaxDims + 1], out[kMaxDims + 1];
  int64_t from = 0, to = 0;  // Offsets of the first element.

  void dim(int64_t n, int64_t stride, int64_t pitch) {
    size[ndim] = n, in[ndim] = stride, out[ndim++] = pitch;
  }
};

StridedMatrix::StridedMatrix(DType dtype, const IntList& sizes, const IntList& strides,
                             int row_dims)
    : dtype_(dtype) {
  for (int d = 0; d < sizes.size(); ++d) {
    Run& r = d < row_dims ? rows_ : cols_;
    r.sizes.push_back(sizes[d]);
    r.strides.push_back(strides[d]);
  }
  for (int d = cols_.sizes.size() - 1; d >= 0 && cols_.strides[d] == contiguous_; --d) {
    contiguous_ *= cols_.sizes[d];
  }
}

int64_t StridedMatrix::Run::offset(int64_t index) const {
  int64_t at = 0;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    at += index % sizes[d] * strides[d];
    index /= sizes[d];
  }
  return at;
}

const char* StridedMatrix::find(const char* base, int64_t row, int64_t col, int64_t cols) const {
  if (col % contiguous_ + cols > contiguous_) return nullptr;
  return base + (rows_.offset(row) + cols_.offset(col)) * static_cast<int64_t>(itemsize(dtype_));
}

// Splits elements [begin, end), whose copies are `pitch` apart, into boxes: each takes as many
// whole consecutive indices of a dim as it can.
template <class F>
void StridedMatrix::Run::boxes(int64_t begin, int64_t end, int64_t pitch, const Box& box,
                               const F& f) const {
  const int ndim = sizes.size();
  if (ndim == 0) return f(box);
  for (int64_t at = begin, next; at < end; at = next) {
    int64_t inner = 1;  // Elements per index of d, the outermost dim that fits.
    int d = ndim - 1;
    for (; d > 0 && at % (inner * sizes[d]) == 0 && at + inner * sizes[d] <= end; --d) {
      inner *= sizes[d];
    }
    const int64_t indices = std::min(sizes[d] - at / inner % sizes[d], (end - at) / inner);
    next = at + indices * inner;
    Box b = box;
    b.from += offset(at);
    b.to += (at - begin) * pitch;
    b.dim(indices, strides[d], inner * pitch);
    while (++d < ndim) {
      inner /= sizes[d];
      b.dim(sizes[d], strides[d], inner * pitch);
    }
    f(b);
  }
}

void StridedMatrix::load(const char* base, DType ct, int64_t row, int64_t rows, int64_t col,
                         int64_t cols, char* to, int64_t pitch) const {
  rows_.boxes(row, row + rows, pitch, {}, [&](const Box& of_rows) {
    cols_.boxes(col, col + cols, 1, of_rows, [&](Box b) { load(base, ct, b, to); });
  });
}

void StridedMatrix::load(const char* base, DType ct, Box& b, char* to) const {
  const auto item = static_cast<int64_t>(itemsize(dtype_)),
             width = static_cast<int64_t>(itemsize(ct));
  base += b.from * item;
  to += b.to * width;
  b.ndim = merge_dims(b.ndim, b.size, 2, -1, [&](int k) { return k == 0 ? b.in : b.out; });
  if (b.out[b.ndim - 1] != 1) b.dim(1, 1, 1);
  const int last = b.ndim - 1,
            row_dim = transposed_dim(b.ndim, b.size, 1, [&](int) { return b.in; });
  const int64_t n = b.size[last], stride = b.in[last];
  int64_t outer = 1, rows = 1, pitch = 0;
  if (row_dim >= 0) {
    rows = b.size[row_dim], pitch = b.out[row_dim];
    b.size[row_dim] = 1;
  }
  for (int d = 0; d < last; ++d) outer *= b.size[d];
  DimWalk<2> walk(last, b.size, {b.in, b.out}, 0);
  for (int64_t o = 0; o < outer; ++o, walk.next()) {
    const char* const from = base + walk.at[0] * item;
    char* const at = to + walk.at[1] * width;
    if (row_dim < 0) {
      load_tile(ct, at, dtype_, from, stride, n);
      continue;
    }
    // Rows innermost: they are adjacent, and adjacent cache lines arrive sooner.
    const int64_t most = std::max(kTransposedRows, kTransposeBlock / std::min(n, kTransposeWidth));
    for (int64_t i = 0; i < n; i += kTransposeWidth) {
      for (int64_t r = 0; r < rows; r += most) {
        load_transposed_block(ct, at + (r * pitch + i) * width, pitch, dtype_,
                              from + (i * stride + r) * item, stride, std::min(most, rows - r),
                              std::min(kTransposeWidth, n - i));
      }
    }
  }
}

}  // namespace brrr
