#pragma once
// Row ops of one's own: forward, gradient, both modes, both devices, from a lambda each.
//
//   #include <brrr/row.h>
//   using namespace brrr;
//   const RowOp softmin{"softmin", "exp(min - x) / sum",
//       [](auto x) { auto e = m::exp(row::min(x) - x); return e / row::sum(e); },
//       [](auto, auto y, auto g) { return y * (row::sum(g * y) - g); }};
//   Tensor y = softmin(x);
//
// A RowOp lives as long as the program (a constant of a source file) and has a name that no other
// op has. What its lambdas may say: ops/vocabulary/row.h; what operands and results there are:
// ops/kinds/row.h. Kernels are compiled with the source file, so that it needs the flags of the
// library's own: link the target brrr::row beside brrr::brrr.
#ifndef BRRR_ROW_FLAGS
#error "brrr: a file that defines row ops needs the flags of brrr's kernels; link brrr::row"
#endif
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__)
#error "brrr: -ffast-math changes results; remove it from the file that defines row ops"
#endif

#include "ops/kinds/row.h"
