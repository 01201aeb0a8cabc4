#pragma once
// A tensor of any strides as a matrix, of which a driver takes dense parts.

#include <algorithm>

#include "core/int_list.h"
#include "core/scalar.h"

namespace brrr {

/// An operand lies across the walk where elements that follow each other are so many apart in it,
/// and so many rows one after the other have elements side by side: less is not worth a block.
inline constexpr int64_t kAcrossApart = 8, kAcrossRows = 16;
/// Whether one of such strides does, in a walk whose rows are numbered by dim `dim`.
inline bool lies_across(int ndim, const int64_t* size, const int64_t* stride, int dim) {
  return stride[dim] == 1 && size[dim] >= kAcrossRows && stride[ndim - 1] >= kAcrossApart;
}
/// The dim along which one of `count` operands does; -1: none. `read(k)`: the strides of operand k,
/// or null if it is not read from memory.
template <class Read> int across_dim(int ndim, const int64_t* size, int count, const Read& read) {
  for (int k = 0; k < count; ++k) {
    const int64_t* const stride = read(k);
    for (int d = ndim - 2; stride && d >= 0; --d) {
      if (lies_across(ndim, size, stride, d)) return d;
    }
  }
  return -1;
}
/// So that it numbers the rows.
inline void put_last_but_one(int64_t* of, int dim, int ndim) {
  std::rotate(of + dim, of + dim + 1, of + ndim - 1);
}
/// Of a tensor that lies across what is read: to[r * pitch + i] = from[i * stride + r], for `rows`
/// (a block's: rows * n is at most kAcrossBlock) and n of them, in compute type `ct`.
void load_across(DType ct, char* to, int64_t pitch, DType dtype, const char* from, int64_t stride,
                 int64_t rows, int64_t n);
inline constexpr int64_t kAcrossBlock = 1024, kAcrossWidth = 64;  ///< Of a block: elements, at most
                                                                  ///< so many of a row.

/// The first `row_dims` dims of a tensor number its rows, the others its columns.
class StridedMatrix {
 public:
  StridedMatrix(DType dtype, const IntList& sizes, const IntList& strides, int row_dims);
  /// to[r * pitch + c] = element (row + r, col + c) of what begins at `base`, in compute type `ct`.
  void load(const char* base, DType ct, int64_t row, int64_t rows, int64_t col, int64_t cols,
            char* to, int64_t pitch) const;
  /// Where columns [col, col + cols) of a row lie, or null where they do not side by side.
  const char* find(const char* base, int64_t row, int64_t col, int64_t cols) const;

 private:
  struct Box;
  struct Run {
    IntList sizes, strides;
    template <class F>
    void boxes(int64_t begin, int64_t end, int64_t pitch, const Box& box, const F& f) const;
    int64_t offset(int64_t index) const;
  };
  void load(const char* base, DType ct, Box& box, char* to) const;

  DType dtype_;
  Run rows_, cols_;
  int64_t together_ = 1;  // Of so many columns, from a multiple on, each is beside the one before.
};

}  // namespace brrr
