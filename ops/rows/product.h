#pragma once
// What the kernels of matmul and linear share.

#include "core/tensor_impl.h"

namespace brrr {

/// out = left right. Shapes are matmul's (one or more dims, batch dims broadcast); `out` is
/// contiguous.
void multiply(const TensorImpl& left, const TensorImpl& right, TensorImpl& out);
/// Bytes of the copies that multiply() makes on the CPU.
int64_t product_scratch(const TensorImpl& left, const TensorImpl& right, const TensorImpl& out);

}  // namespace brrr
