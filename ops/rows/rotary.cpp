// Rotary position embedding. A row turns by angles; its gradient turns back.
#include <cmath>

#include "core/check.h"
#include "ops/rows/library_kernels.h"
#include "ops/nn_ops.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

namespace {

// --- kernels -------------------------------------------------------------------------------------

// Cosines and sines of position * frequency. The angle is exact to float64 and brought into one
// turn there, so that far positions are as good as near ones.
void fill_turns(double position, const double* frequency, int64_t n, float* c, float* s) {
  map_row(n, [=](int64_t i, int lanes) {
    const vx::f32 r = vx::within_turn(take<vx::f64>(frequency + i, lanes) * position);
    put<vx::f32>(c + i, vx::cos(r), lanes);
    put<vx::f32>(s + i, vx::sin(r), lanes);
  });
}
void fill_turns(double position, const double* frequency, int64_t n, double* c, double* s) {
  for (int64_t i = 0; i < n; ++i) {
    c[i] = std::cos(position * frequency[i]);
    s[i] = std::sin(position * frequency[i]);
  }
}

template <class V>
void turn_row(const Lane<V>* x, const Lane<V>* c, const Lane<V>* s, bool back, Lane<V>* y,
              int64_t half) {
  map_row(half, [=](int64_t i, int lanes) {
    const V a = take<V>(x + i, lanes), b = take<V>(x + half + i, lanes);
    const V cosine = take<V>(c + i, lanes);
    const V sine = back ? -take<V>(s + i, lanes) : take<V>(s + i, lanes);
    put<V>(y + i, a * cosine - b * sine, lanes);
    put<V>(y + half + i, b * cosine + a * sine, lanes);
  });
}

void rotary_cpu(OpCall& c) {
  const TensorImpl &in = *c.in[0], &positions = *c.in[1];
  if (in.numel == 0) return;
  const DType compute = compute_type(in.dtype);
  const int64_t length = in.sizes[in.ndim - 2], width = in.sizes[in.ndim - 1], half = width / 2;
  const MatrixInput x(&in, compute);
  const DenseInput at(&positions, kInt64);
  DenseOutput y(c.out[0], compute);
  const Tensor room = raw_empty({half}, kFloat64, in.device),
               table = raw_empty({2, length, half}, compute, in.device);
  auto* frequency = reinterpret_cast<double*>(room.impl()->data());
  for (int64_t i = 0; i < half; ++i) {
    frequency[i] = rotary_frequency(c.attrs.d(0), i, width);
  }
  with_vector(compute, [&](auto v) {
    using T = Lane<decltype(v)>;
    auto* cosines = reinterpret_cast<T*>(table.impl()->data());
    T* sines = cosines + length * half;
    for_rows(length, half, [&](int64_t first, int64_t count) {
      for (int64_t t = first; t < first + count; ++t) {
        fill_turns(static_cast<double>(at.as<int64_t>()[t]), frequency, half, cosines + t * half,
                   sines + t * half);
      }
    });
    const int64_t grain = std::max<int64_t>(1, kRowGrain / (length * width));
    parallel_for(in.numel / (length * width), grain, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        const T* from = x.at<T>(m);
        T* to = y.as<T>() + m * length * width;
        for (int64_t t = 0; t < length; ++t) {
          turn_row<decltype(v)>(from + t * x.row(), cosines + t * half, sines + t * half,
                                c.attrs.v[1] != 0, to + t * width, half);
        }
      }
    });
  });
  y.finish();
}

// Frequencies, and cosines and sines of each position.
int64_t rotary_scratch(const OpCall& c) {
  const TensorImpl& x = *c.in[0];
  const int64_t half = x.sizes[x.ndim - 1] / 2;
  return packed_bytes(c) + scratch_for(half, sizeof(double)) +
         scratch_for(2 * half * x.sizes[x.ndim - 2], sizeof(double));
}

// --- the row -------------------------------------------------------------------------------------

void rotary_infer(OpCall& c) {
  const TensorImpl &x = *c.in[0], &at = *c.in[1];
  check_composite(c);
  BRRR_CHECK(x.ndim >= 2 && x.sizes[x.ndim - 1] % 2 == 0,
             "rotary_embedding: takes [.., length, width] with an even width, got {}",
             describe(&x));
  BRRR_CHECK(at.dtype == kInt64 && at.ndim == 1 && at.sizes[0] == x.sizes[x.ndim - 2],
             "rotary_embedding: positions are {}, but {} needs int64[{}], one for each row",
             describe(&at), describe(&x), x.sizes[x.ndim - 2]);
  set_meta(c, 0, x.dtype, x.size_list());
}

Tensor turned(const Tensor& x, const Tensor& positions, double base, bool back);

// Attributes: word 0 the base, word 1 whether to turn back.
const OpDef rotary_row{"rotary_embedding",
                       "halves of each row turned by position * base^(-2i / D)",
                       {.infer = rotary_infer,
                        .kernel = {{rotary_cpu}, {rotary_cuda}},
                        .scratch = rotary_scratch,
                        .vjp =
                            [](VjpCall& v) {
                              if (!v.needs(0)) return;
                              const Attrs& a = v.attrs();
                              v.gin[0] = turned(v.gout[0], v.input(1), a.d(0), !a.v[1]);
                            },
                        .saves_inputs = 0b10}};

Tensor turned(const Tensor& x, const Tensor& positions, double base, bool back) {
  return call(rotary_row, {x, positions}, base, int64_t{back});
}

}  // namespace

double rotary_frequency(double base, int64_t i, int64_t width) {
  return std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
}

Tensor rotary_embedding(const Tensor& x, const Tensor& positions, double base) {
  BRRR_CHECK(x.defined() && positions.defined(),
             "rotary_embedding: x or positions is undefined; assign it");
  BRRR_CHECK(std::isfinite(base) && base > 0,
             "rotary_embedding: base must be positive and finite, got {}", base);
  return turned(x, positions, base, false);
}

}  // namespace brrr
