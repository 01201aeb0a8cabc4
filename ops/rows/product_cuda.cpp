// What matmul and linear need on a GPU besides the library's products.
#include "ops/rows/product.h"

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

// U is the bias' dtype, the compute type of T. A thread has a group of y, one access. With kRows a
// group has neighbours of one row, whose biases are read together.
constexpr DeviceKernel bias_kernel{"add_bias", BiasArgumentsText, 256, R"(
constexpr int kGroup = N & 31, kStep = 16 / sizeof(U) < kGroup ? 16 / sizeof(U) : kGroup;
constexpr bool kRows = N >> 5;

KERNEL(add_bias, BiasArguments, 256) {
  const long at = ((long)blockIdx.x * 256 + threadIdx.x) * kGroup;
  if (at >= p.n) return;
  const bool whole = kRows || at + kGroup <= p.n;
  const bool narrow = p.n <= 0x7fffffff;
  T* y = (T*)p.y + at;
  const long column = narrow ? (unsigned)at % (unsigned)p.columns : at % p.columns;
  const U* bias = (const U*)p.bias + column;
  Pack<T, kGroup> group = {};
  Pack<U, kStep> b[kGroup / kStep];
  if (whole) {
    group = *(const Pack<T, kGroup>*)y;
  } else {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (at + u < p.n) group.v[u] = y[u];
    }
  }
  long left = p.columns - column;  // In this row.
#pragma unroll
  for (int k = 0; k < kGroup; k += kStep) {
    if (kRows) {
      b[k / kStep] = *(const Pack<U, kStep>*)(bias + k);
      continue;
    }
#pragma unroll
    for (int u = 0; u < kStep; ++u, --left) {
      if (left == 0) {
        left = p.columns;
        bias -= left;
      }
      b[k / kStep].v[u] = bias[k + u];
    }
  }
#pragma unroll
  for (int u = 0; u < kGroup; ++u) {
    put(group.v + u, get(group.v + u) + get_u(b[u / kStep].v + u % kStep));
  }
  if (whole) {
    *(Pack<T, kGroup>*)y = group;
    return;
  }
#pragma unroll
  for (int u = 0; u < kGroup; ++u) {
    if (at + u < p.n) y[u] = group.v[u];
  }
}
)"};

}  // namespace

void integer_product_cuda(const IntegerProduct& p, DType dtype) {
  run_kernel(integer_product_kernel, {.t = dtype}, {blocks_for(p.m * p.n)}, p);
}

void add_bias_cuda(TensorImpl& out, const TensorImpl& bias) {
  const auto aligned = [](const TensorImpl& t) {
    return reinterpret_cast<uintptr_t>(t.data()) % 16 == 0;
  };
  const int group = aligned(out) ? 16 / static_cast<int>(itemsize(out.dtype)) : 1;
  const bool rows = aligned(bias) && bias.numel % group == 0;
  run_kernel(bias_kernel, {.t = out.dtype, .u = bias.dtype, .n = group | rows << 5},
             {blocks_for(out.numel, 256, group)},
             BiasArguments{out.data(), bias.data(), out.numel, bias.numel});
}

}  // namespace brrr
