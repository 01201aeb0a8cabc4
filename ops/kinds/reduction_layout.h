#pragma once
// A reduction's input once runs of dims are merged: what a kernel has to walk.

#include "ops/kinds/reduction.h"

namespace brrr {

/// (outer, rows, cols) reduced over `rows`, or, when `cols` is 0, (outer, rows) reduced over the
/// latter. Strides are in elements; the innermost elements are adjacent.
struct ReductionLayout {
  DType compute, dtype;  ///< Of the arithmetic, and of the elements in memory.
  const char* base;
  int64_t outer = 1, rows = 1, cols = 0;
  int64_t outer_stride = 0, row_stride = 0;
  int64_t count = 1;  ///< Elements per output; 0 where the input is empty, and nothing else is set.
  Tensor copy;        ///< Keeps what `base` points to when the input's own order would not do.
};

/// Where `filled` is false a copy is not made, and nothing may be read.
ReductionLayout reduction_layout(const OpCall& c, bool filled = true);

}  // namespace brrr
