#pragma once
// What the kernels of matmul and linear share.

#include "core/device_kernel.h"
#include "core/tensor_impl.h"

namespace brrr {

/// out = left right, or left right^T for a weight. Shapes are matmul's (one or more dims, batch
/// dims broadcast); `out` is contiguous.
void multiply(const TensorImpl& left, const TensorImpl& right, bool transpose_right,
              TensorImpl& out);
/// Bytes of the copies that multiply() and add_bias() make on the CPU; no bias: null.
int64_t product_scratch(const TensorImpl& left, const TensorImpl& right, bool transpose_right,
                        const TensorImpl* bias, const TensorImpl& out);
/// Adds the bias to each row of `out`, rounding as a separate add would.
void add_bias(TensorImpl& out, const TensorImpl& bias);

/// One product of integer matrices on a GPU, modulo 2^bits. Strides are in elements.
BRRR_DEVICE_STRUCT(IntegerProduct, {
  const char* a;
  const char* b;
  char* c;
  long m;
  long n;
  long k;
  long a_row;
  long a_col;
  long b_row;
  long b_col;
});
void integer_product_cuda(const IntegerProduct& p, DType dtype);
/// add_bias on a GPU; `bias` is contiguous and of the compute type.
void add_bias_cuda(TensorImpl& out, const TensorImpl& bias);

}  // namespace brrr
