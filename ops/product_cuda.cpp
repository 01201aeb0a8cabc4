// What matmul and linear need on a GPU besides the library's products.
#include "ops/product.h"

namespace brrr {

namespace {

BRRR_DEVICE_STRUCT(BiasArguments, {
  char* y;
  const char* bias;
  long n;
  long columns;
});

constexpr DeviceKernel integer_product_kernel{"integer_product", IntegerProductText, 256, R"(
KERNEL(integer_product, IntegerProduct, 256) {
  const long at = (long)blockIdx.x * 256 + threadIdx.x;
  if (at >= p.m * p.n) return;
  const T* a = (const T*)p.a + at / p.n * p.a_row;
  const T* b = (const T*)p.b + at % p.n * p.b_col;
  unsigned long sum = 0;
  for (long k = 0; k < p.k; ++k) {
    sum += (unsigned long)a[k * p.a_col] * (unsigned long)b[k * p.b_row];
  }
  ((T*)p.c)[at] = (T)sum;
}
)"};

// U is the bias' dtype, the compute type of T.
constexpr DeviceKernel bias_kernel{"add_bias", BiasArgumentsText, 256, R"(
KERNEL(add_bias, BiasArguments, 256) {
  const long at = (long)blockIdx.x * 256 + threadIdx.x;
  if (at >= p.n) return;
  T* y = (T*)p.y + at;
  put(y, get(y) + get_u((const U*)p.bias + at % p.columns));
}
)"};

}  // namespace

void integer_product_cuda(const IntegerProduct& p, DType dtype) {
  run_kernel(integer_product_kernel, {.t = dtype}, {blocks_for(p.m * p.n)}, p);
}

void add_bias_cuda(TensorImpl& out, const TensorImpl& bias) {
  run_kernel(bias_kernel, {.t = out.dtype, .u = bias.dtype}, {blocks_for(out.numel)},
             BiasArguments{out.data(), bias.data(), out.numel, bias.numel});
}

}  // namespace brrr
