#pragma once
// Kernels of library rows on a GPU (the CPU's are beside the rows), and what the two share.

#include "core/op.h"

namespace brrr {

/// A tensor as lines along a dim: [outer, n, inner].
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;
};
inline Lines lines_along(const TensorImpl& x, int dim) {
  Lines l;
  for (int d = 0; d < x.ndim; ++d) (d < dim ? l.outer : d > dim ? l.inner : l.n) *= x.sizes[d];
  return l;
}

/// Writes `t`, in any dtype and layout, into the part of `out` that starts at `begin` along `dim`.
void copy_into_part(TensorImpl& out, const TensorImpl& t, int dim, int64_t begin);
void cat_cuda(OpCall& c);

void tril_cuda(OpCall& c);
void triu_cuda(OpCall& c);

/// base^(-2 i / width), the angle by which pair i of a row turns at position 1.
double rotary_frequency(double base, int64_t i, int64_t width);
void rotary_cuda(OpCall& c);

void argmax_cuda(OpCall& c);
void argmin_cuda(OpCall& c);

struct CumsumAttrs {
  int64_t dim;
  int64_t reverse;  ///< The sums run from its end.
};
void cumsum_cuda(OpCall& c);

}  // namespace brrr
