#pragma once
// A tensor of any strides as a matrix, of which a driver loads dense parts.

#include <algorithm>

#include "core/int_list.h"
#include "core/scalar.h"

namespace brrr {

/// An operand is transposed in an iteration if its stride along the innermost dim is at least
/// kTransposedStride and at least kTransposedRows rows are adjacent in it; with less a block does
/// not pay.
inline constexpr int64_t kTransposedStride = 8, kTransposedRows = 16;
/// Whether an operand with these strides is transposed, if dim `dim` numbers the rows.
inline bool is_transposed(int ndim, const int64_t* size, const int64_t* stride, int dim) {
  return stride[dim] == 1 && size[dim] >= kTransposedRows && stride[ndim - 1] >= kTransposedStride;
}
/// The dim along which the first transposed one of `count` operands is contiguous, or -1.
/// `read(k)`: the strides of operand k, or null if it is not read from memory.
template <class Read>
int transposed_dim(int ndim, const int64_t* size, int count, const Read& read) {
  for (int k = 0; k < count; ++k) {
    const int64_t* const stride = read(k);
    for (int d = ndim - 2; stride && d >= 0; --d) {
      if (is_transposed(ndim, size, stride, d)) return d;
    }
  }
  return -1;
}
/// Moves `dim` to the last place but one, so that it numbers the rows.
inline void move_before_last(int64_t* of, int dim, int ndim) {
  std::rotate(of + dim, of + dim + 1, of + ndim - 1);
}
/// Loads a block of a transposed operand: to[r * pitch + i] = from[i * stride + r] for r < rows, i
/// < n, where rows * n is at most kTransposeBlock, converted to compute type `ct`.
void load_transposed_block(DType ct, char* to, int64_t pitch, DType dtype, const char* from,
                           int64_t stride, int64_t rows, int64_t n);
inline constexpr int64_t kTransposeBlock = 1024, kTransposeWidth = 64;  ///< Elements of a block,
                                                                        ///< and at most of one row.

/// The first `row_dims` dims of a tensor number its rows, the others its columns.
class StridedMatrix {
 public:
  StridedMatrix(DType dtype, const IntList& sizes, const IntList& strides, int row_dims);
  /// to[r * pitch + c] = element (row + r, col + c), converted to `ct`; `base`: the first element.
  void load(const char* base, DType ct, int64_t row, int64_t rows, int64_t col, int64_t cols,
            char* to, int64_t pitch) const;
  /// The address of columns [col, col + cols) of a row, or null if they are not contiguous.
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
  int64_t contiguous_ = 1;  // Aligned groups of this many columns are contiguous.
};

}  // namespace brrr
