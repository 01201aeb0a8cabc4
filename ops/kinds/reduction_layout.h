#pragma once
// A reduction's input once runs of dims are merged: what a kernel has to walk.

#include <memory>

#include "ops/kinds/reduction.h"
#include "ops/kinds/strided_matrix.h"

namespace brrr {

/// (outer, rows, cols) reduced over `rows`, or, when `cols` is 0, (outer, rows) reduced over the
/// latter. Strides are in elements; the innermost elements are adjacent where `direct`.
struct ReductionLayout {
  /// Of the call's input, all but `base`. Nothing is read.
  explicit ReductionLayout(const OpCall& c);
  DType compute, dtype;  ///< Of the arithmetic, and of the elements in memory.
  const char* base = nullptr;
  int64_t outer = 1, rows = 1, cols = 0;
  int64_t outer_stride = 0, row_stride = 0;
  int64_t count;  ///< Elements per output; 0 where the input is empty, and nothing else is set.
  bool direct = true;
  bool across = false;  ///< The innermost elements are not adjacent.
  int64_t apart = 0;    ///< Of rows that lie side by side: from an element to the next, else 0.
  IntList order;        ///< The input's dims, but for those of size 1, as they are walked.
  /// All elements where they are not direct: outer * rows by cols, or outer by rows.
  std::shared_ptr<const StridedMatrix> elements;
  Tensor copy;  ///< Keeps what `base` points to if they were brought into order.
};

/// All of it, direct: of a copy, where the elements' own order would not do.
ReductionLayout direct_layout(const OpCall& c);

}  // namespace brrr
