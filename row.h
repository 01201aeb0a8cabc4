#pragma once
// User-defined row ops: a lambda for forward and one for the gradient serve both modes and devices.
//
//   #include <brrr/row.h>
//   using namespace brrr;
//   const RowOp softmin{"softmin", "exp(min - x) / sum",
//       [](auto x) { auto e = m::exp(row::min(x) - x); return e / row::sum(e); },
//       [](auto, auto y, auto g) { return y * (row::sum(g * y) - g); }};
//   Tensor y = softmin(x);
//
// Define a RowOp as a constant at namespace scope, with a unique op name. ops/vocabulary/row.h
// documents what its lambdas may use, ops/kinds/row.h the operands and results. Its CPU kernels are
// compiled with the source file, which therefore needs the flags of the library's kernels: link
// the target brrr::row in addition to brrr::brrr.
#ifndef BRRR_ROW_FLAGS
#error "brrr: a file that defines row ops needs the flags of brrr's kernels; link brrr::row"
#endif
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
#error "brrr: -ffast-math changes results; remove it from the file that defines row ops"
#endif

#include "ops/kinds/row.h"
