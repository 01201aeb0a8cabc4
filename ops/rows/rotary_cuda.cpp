// Rotary position embedding on a GPU: a table of cosines and sines, then every pair turned once. In
// float32 (and 16-bit floats) the bits are the CPU's.
#include <algorithm>

#include "core/device_kernel.h"
#include "ops/rows/library_kernels.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

constexpr int64_t kFrequencies = 256;  // As many as one launch takes.

// Columns first .. first + count - 1 of the table, [2, length, half].
BRRR_DEVICE_STRUCT(TurnsArguments, {
  char* table;
  const char* positions;
  long position_stride;
  long length;
  long half;
  long first;
  long count;
  double frequency[256];
});

// The frequencies come with the launch: a GPU's pow() is not the host's.
constexpr DeviceKernel turns_kernel{"turns", TurnsArgumentsText, 256, R"(
BRRR_VX f32 reduced(f64 angle, float) { return within_turn(angle); }
BRRR_VX f64 reduced(f64 angle, double) { return angle; }
KERNEL(turns, TurnsArguments, 256) {
  const long at = (long)blockIdx.x * 256 + threadIdx.x;
  if (at >= p.length * p.count) return;
  const long t = at / p.count, i = at % p.count;
  const double position = (double)((const long*)p.positions)[t * p.position_stride];
  const TV angle = reduced(splat(p.frequency[i]) * position, T());
  T* cosine = (T*)p.table + t * p.half + p.first + i;
  store(cosine, cos(angle));
  store(cosine + p.length * p.half, sin(angle));
}
)"};

// Rows by `dims` sizes and strides, in elements; the last of them is the length.
BRRR_DEVICE_STRUCT(RotaryArguments, {
  const char* x;
  char* y;
  const char* table;
  long rows;
  long length;
  long half;
  int back;
  int dims;
  long size[8];
  long stride[8];
});

// N pairs of a row a thread.
constexpr DeviceKernel rotary_kernel{"rotary", RotaryArgumentsText, 256, R"(
KERNEL(rotary, RotaryArguments, 256) {
  typedef Pack<T, N> Unit;
  typedef Pack<TC, N> Turns;
  const long at = (long)blockIdx.x * 256 + threadIdx.x, units = p.half / N;
  if (at >= p.rows * units) return;
  const long row = at / units, i = at % units * N;
  long from = i, rest = row;
  for (int d = p.dims - 1; d >= 0; --d) {
    from += rest % p.size[d] * p.stride[d];
    rest /= p.size[d];
  }
  const T* x = (const T*)p.x + from;
  T* y = (T*)p.y + row * 2 * p.half + i;
  const TC* table = (const TC*)p.table + row % p.length * p.half + i;
  const Unit first = *(const Unit*)x, second = *(const Unit*)(x + p.half);
  const Turns cosines = *(const Turns*)table, sines = *(const Turns*)(table + p.length * p.half);
  Unit turned_first, turned_second;
  for (int u = 0; u < N; ++u) {
    const TCV a = get(&first.v[u]), b = get(&second.v[u]);
    const TCV c = splat(cosines.v[u]), s = p.back ? -splat(sines.v[u]) : splat(sines.v[u]);
    put(&turned_first.v[u], a * c - b * s);
    put(&turned_second.v[u], b * c + a * s);
  }
  *(Unit*)y = turned_first;
  *(Unit*)(y + p.half) = turned_second;
}
)"};

Tensor table_of(const OpCall& c, DType compute, int64_t length, int64_t half) {
  const TensorImpl& positions = *c.in[1];
  Tensor table = raw_empty({2, length, half}, compute, positions.device);
  TurnsArguments a{
      table.impl()->data(), positions.data(), positions.strides[0], length, half, 0, 0, {}};
  for (; a.first < half; a.first += a.count) {
    a.count = std::min(kFrequencies, half - a.first);
    for (int64_t i = 0; i < a.count; ++i) {
      a.frequency[i] = rotary_frequency(c.attrs.d(0), a.first + i, 2 * half);
    }
    run_kernel(turns_kernel, {.t = compute}, {blocks_for(length * a.count)}, a);
  }
  return table;
}

}  // namespace

void rotary_cuda(OpCall& c) {
  const TensorImpl *x = c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  Tensor copy;
  if (x->strides[x->ndim - 1] != 1) {
    copy = raw_empty(x->size_list(), x->dtype, x->device);
    copy_now(*copy.impl(), *x);
    x = copy.impl();
  }
  const int last = x->ndim - 1;
  const int64_t length = x->sizes[last - 1], width = x->sizes[last], half = width / 2;
  const DType compute = compute_type(x->dtype);
  const Tensor table = table_of(c, compute, length, half);
  RotaryArguments a{x->data(),
                    y.data(),
                    table.impl()->data(),
                    y.numel / width,
                    length,
                    half,
                    static_cast<int>(c.attrs.v[1]),
                    1,
                    {y.numel / width},
                    {width}};
  const auto item = static_cast<int64_t>(itemsize(x->dtype));
  const auto each = static_cast<int>(16 / itemsize(compute));
  int64_t bits = reinterpret_cast<int64_t>(a.x) | reinterpret_cast<int64_t>(a.y) | half * item;
  if (!x->contiguous()) {
    a.dims = last;
    for (int d = 0; d < last; ++d) {
      a.size[d] = x->sizes[d];
      a.stride[d] = x->strides[d];
      if (a.size[d] > 1) bits |= a.stride[d] * item;
    }
  }
  const int n = bits % (each * item) == 0 ? each : 1;
  run_kernel(rotary_kernel, {.t = x->dtype, .n = n}, {blocks_for(a.rows * (half / n))}, a);
}

}  // namespace brrr
