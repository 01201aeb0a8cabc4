#pragma once
// What the CPU kernels of matmul and linear share.

#include "core/tensor_impl.h"

namespace brrr {

/// out = left right, or left right^T for a weight. Shapes are matmul's (one or more dims, batch
/// dims broadcast); `out` is contiguous.
void multiply(const TensorImpl& left, const TensorImpl& right, bool transpose_right,
              TensorImpl& out);
/// Adds the bias to each row of `out`, rounding as a separate add would.
void add_bias(TensorImpl& out, const TensorImpl& bias);

}  // namespace brrr
