#pragma once
// A reduction's input with runs of dims merged: what a kernel iterates over.

#include <memory>

#include "ops/kinds/reduction.h"
#include "ops/kinds/strided_matrix.h"

namespace brrr {

/// (outer, rows, cols) reduced over `rows`, or, if `cols` is 0, (outer, rows) reduced over `rows`.
/// Strides are in elements; the innermost elements are adjacent if `direct`.
struct ReductionLayout {
  /// From the call's input, all but `base`. Reads no data.
  explicit ReductionLayout(const OpCall& c);
  DType compute, dtype;  ///< Of the arithmetic, and in memory.
  const char* base = nullptr;
  int64_t outer = 1, rows = 1, cols = 0;
  int64_t outer_stride = 0, row_stride = 0;
  int64_t count;  ///< Elements per output; 0 for an empty input: no other field is set.
  bool direct = true;
  bool strided = false;  ///< The innermost elements are not adjacent.
  int64_t col_step = 0;  ///< If rows are adjacent (transposed): from element to element; else 0.
  IntList order;         ///< The input's dims without those of size 1, in iteration order.
  /// All elements if they are not direct: outer * rows by cols, or outer by rows.
  std::shared_ptr<const StridedMatrix> elements;
  Tensor copy;  ///< Owns the memory at `base` if the elements were reordered.
};

/// A direct layout of the whole input: of a reordered copy if the input is not direct.
ReductionLayout direct_layout(const OpCall& c);

}  // namespace brrr
