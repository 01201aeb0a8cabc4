#pragma once
// Kernels of the rows of nn_ops.h on a GPU (the CPU's are beside the rows), and what both read from
// a call.

#include "core/op.h"
#include "ops/nn_ops.h"

namespace brrr {

void softmax_cuda(OpCall& c);
void softmax_backward_cuda(OpCall& c);
void log_softmax_cuda(OpCall& c);
void log_softmax_backward_cuda(OpCall& c);

/// The rows that a norm sees in x, and their length.
struct NormShape {
  int64_t rows = 1, n = 1;
  NormShape(const TensorImpl& x, const Attrs& a) {
    for (int d = 0; d < x.ndim; ++d) (d < x.ndim - a.v[0] ? rows : n) *= x.sizes[d];
  }
};
void layer_norm_cuda(OpCall& c);
void rms_norm_cuda(OpCall& c);
void layer_norm_backward_cuda(OpCall& c);  ///< With and without the sums for weight and bias.
void rms_norm_backward_cuda(OpCall& c);

/// What rows a loss counts and what it aims at. Calls without attribute words have the defaults.
struct Targets {
  int64_t ignored;
  double smoothing;
  double hit, miss;  // 1 - e and e / C.

  Targets(const Attrs& a, int64_t classes)
      : ignored(a.n ? a.v[0] : CrossEntropyOptions{}.ignore_index),
        smoothing(a.n ? a.d(1) : CrossEntropyOptions{}.label_smoothing),
        hit(1 - smoothing),
        miss(smoothing / static_cast<double>(classes)) {}
};
void cross_entropy_cuda(OpCall& c);
void cross_entropy_backward_cuda(OpCall& c);

}  // namespace brrr
