#include "ops/kinds/strided_matrix.h"

#include <algorithm>

#include "ops/kinds/merge_dims.h"
#include "ops/vocabulary/convert.h"
#include "ops/vocabulary/transpose.h"

namespace brrr {

void load_across(DType ct, char* to, int64_t pitch, DType dtype, const char* from, int64_t stride,
                 int64_t rows, int64_t n) {
  alignas(64) char columns[kAcrossBlock * 8];
  const auto item = static_cast<int64_t>(itemsize(dtype)),
             width = static_cast<int64_t>(itemsize(ct));
  if (dtype != ct) {
    for (int64_t i = 0; i < n; ++i) {
      load_tile(ct, columns + i * rows * width, dtype, from + i * stride * item, 1, rows);
    }
    from = columns;
    stride = rows;
  }
  const auto turn = [&](const auto* in, auto* out) {
    tile::transpose(in, stride, n, rows, out, pitch, false);
  };
  if (width == 1)
    turn(reinterpret_cast<const uint8_t*>(from), reinterpret_cast<uint8_t*>(to));
  else if (width == 2)
    turn(reinterpret_cast<const uint16_t*>(from), reinterpret_cast<uint16_t*>(to));
  else if (width == 4)
    turn(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to));
  else
    turn(reinterpret_cast<const double*>(from), reinterpret_cast<double*>(to));
}

// What is a range of indices in each dim, with the strides of the elements and of their copies.
struct StridedMatrix::Box {
  int ndim = 0;
  int64_t size[kMaxDims + 1], in[kMaxDims + 1], out[kMaxDims + 1];
  int64_t from = 0, to = 0;  // Of the first element.

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
  for (int d = cols_.sizes.size() - 1; d >= 0 && cols_.strides[d] == together_; --d) {
    together_ *= cols_.sizes[d];
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
  if (col % together_ + cols > together_) return nullptr;
  return base + (rows_.offset(row) + cols_.offset(col)) * static_cast<int64_t>(itemsize(dtype_));
}

// The elements [begin, end) of the dims from `dim` on, whose copies are `pitch` apart, as boxes: a
// part of the first index, all of several, and a part of the last.
template <class F>
void StridedMatrix::Run::boxes(int dim, int64_t begin, int64_t end, int64_t pitch, Box box,
                               const F& f) const {
  if (begin == end) return;
  if (dim == sizes.size()) return f(box);
  int64_t inner = 1;
  for (int d = dim + 1; d < sizes.size(); ++d) inner *= sizes[d];
  const int64_t whole = (begin + inner - 1) / inner, stop = end / inner;
  const auto part = [&](int64_t index, int64_t from, int64_t to) {
    Box b = box;
    b.from += index * strides[dim];
    b.to += (index * inner + from - begin) * pitch;
    boxes(dim + 1, from, to, pitch, b, f);
  };
  if (whole > stop) return part(stop, begin - stop * inner, end - stop * inner);
  if (begin < whole * inner) part(whole - 1, begin - (whole - 1) * inner, inner);
  if (whole < stop) {
    Box b = box;
    b.from += whole * strides[dim];
    b.to += (whole * inner - begin) * pitch;
    b.dim(stop - whole, strides[dim], inner * pitch);
    int64_t apart = inner;
    for (int d = dim + 1; d < sizes.size(); ++d) {
      apart /= sizes[d];
      b.dim(sizes[d], strides[d], apart * pitch);
    }
    f(b);
  }
  if (stop * inner < end) part(stop, 0, end - stop * inner);
}

void StridedMatrix::load(const char* base, DType ct, int64_t row, int64_t rows, int64_t col,
                         int64_t cols, char* to, int64_t pitch) const {
  rows_.boxes(0, row, row + rows, pitch, {}, [&](const Box& of_rows) {
    cols_.boxes(0, col, col + cols, 1, of_rows, [&](Box b) { load(base, ct, b, to); });
  });
}

void StridedMatrix::load(const char* base, DType ct, Box& b, char* to) const {
  const auto item = static_cast<int64_t>(itemsize(dtype_)),
             width = static_cast<int64_t>(itemsize(ct));
  base += b.from * item;
  to += b.to * width;
  b.ndim = merge_dims(b.ndim, b.size, 2, -1, [&](int k) { return k == 0 ? b.in : b.out; });
  if (b.out[b.ndim - 1] != 1) b.dim(1, 1, 1);
  int last = b.ndim - 1, across = -1;
  for (int d = 0; d < last; ++d) {
    const bool lies_across = b.in[d] == 1 && b.size[d] >= kAcrossRows;
    if (lies_across && std::abs(b.in[last]) >= kAcrossApart) across = d;
  }
  const int64_t n = b.size[last], stride = b.in[last];
  int64_t outer = 1, rows = 1, pitch = 0;
  if (across >= 0) {
    rows = b.size[across], pitch = b.out[across];
    b.size[across] = 1;
  }
  for (int d = 0; d < last; ++d) outer *= b.size[d];
  DimWalk<2> walk(last, b.size, {b.in, b.out}, 0);
  for (int64_t o = 0; o < outer; ++o, walk.next()) {
    const char* const from = base + walk.at[0] * item;
    char* const at = to + walk.at[1] * width;
    if (across < 0) {
      load_tile(ct, at, dtype_, from, stride, n);
      continue;
    }
    // Along its rows first: lines side by side come sooner than those far apart.
    const int64_t most = std::max(kAcrossRows, kAcrossBlock / std::min(n, kAcrossWidth));
    for (int64_t i = 0; i < n; i += kAcrossWidth) {
      for (int64_t r = 0; r < rows; r += most) {
        load_across(ct, at + (r * pitch + i) * width, pitch, dtype_, from + (i * stride + r) * item,
                    stride, std::min(most, rows - r), std::min(kAcrossWidth, n - i));
      }
    }
  }
}

}  // namespace brrr
