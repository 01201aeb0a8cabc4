#include "tests/bench/floor_mlp.h"

#include <cblas.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "ops/vocabulary/vec_math.h"

namespace brrr::bench {
namespace {

using Vec = vx::f32;

constexpr std::int64_t lanes = vx::lanes;

// x <= 0 ? 0 : v, so that a NaN in x propagates as in relu.
inline Vec zero_where_nonpositive(Vec x, Vec v) { return vx::where(vx::le(x, Vec{}), Vec{}, v); }

// y[r, :] = relu(y[r, :] + bias) or y[r, :] + bias.
template <bool relu>
void add_bias(float* y, const float* bias, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r, y += cols) {
    std::int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      Vec v = vx::load(y + c) + vx::load(bias + c);
      if constexpr (relu) v = zero_where_nonpositive(v, v);
      vx::store(y + c, v);
    }
    for (; c < cols; ++c) {
      const float v = y[c] + bias[c];
      y[c] = relu && v <= 0.0f ? 0.0f : v;
    }
  }
}

// grad[r, c] = 0 where the ReLU's output is 0; bias_grad[c] = the sum over r of grad. Four vectors
// wide, so that the sums of columns stay in registers over all rows.
void relu_mask_and_bias_grad(float* grad, const float* output, float* bias_grad, std::int64_t rows,
                             std::int64_t cols) {
  std::int64_t c = 0;
  const auto block = [&](auto count) {
    constexpr int n = decltype(count)::value;
    for (; c + n * lanes <= cols; c += n * lanes) {
      Vec sum[n] = {};
      for (std::int64_t r = 0; r < rows; ++r) {
        float* g = grad + r * cols + c;
        const float* y = output + r * cols + c;
        for (int k = 0; k < n; ++k) {
          const Vec v = zero_where_nonpositive(vx::load(y + k * lanes), vx::load(g + k * lanes));
          vx::store(g + k * lanes, v);
          sum[k] += v;
        }
      }
      for (int k = 0; k < n; ++k) vx::store(bias_grad + c + k * lanes, sum[k]);
    }
  };
  block(std::integral_constant<int, 4>{});
  block(std::integral_constant<int, 1>{});
  for (; c < cols; ++c) {
    float sum = 0.0f;
    for (std::int64_t r = 0; r < rows; ++r) {
      float& g = grad[r * cols + c];
      if (output[r * cols + c] <= 0.0f) g = 0.0f;
      sum += g;
    }
    bias_grad[c] = sum;
  }
}

// Updates process whole vectors: the padding of a buffer is 0 and stays 0.
void sgd_update(float* value, const float* grad, std::int64_t size, float lr) {
  const Vec vlr = vx::splat(lr);
  for (std::int64_t i = 0; i < size; i += lanes) {
    vx::store(value + i, vx::load(value + i) - vlr * vx::load(grad + i));
  }
}

// Scalars of an AdamW step that all elements share (Loshchilov and Hutter 2019, algorithm 2, in the
// order of operations of torch.optim.AdamW).
struct AdamWFactors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float keep;          // 1 - lr * weight_decay
  float step_size;     // lr / (1 - beta1^t)
  float inverse_root;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

AdamWFactors adamw_factors(const FloorHyper& hyper, std::int64_t t) {
  const double correction1 = 1.0 - std::pow(hyper.beta1, static_cast<double>(t));
  const double correction2 = 1.0 - std::pow(hyper.beta2, static_cast<double>(t));
  return {static_cast<float>(hyper.beta1),
          static_cast<float>(1.0 - hyper.beta1),
          static_cast<float>(hyper.beta2),
          static_cast<float>(1.0 - hyper.beta2),
          static_cast<float>(1.0 - hyper.lr * hyper.weight_decay),
          static_cast<float>(hyper.lr / correction1),
          static_cast<float>(1.0 / std::sqrt(correction2)),
          static_cast<float>(hyper.eps)};
}

void adamw_update(float* value, const float* grad, float* mean, float* square, std::int64_t size,
                  const AdamWFactors& f) {
  for (std::int64_t i = 0; i < size; i += lanes) {
    const Vec g = vx::load(grad + i);
    const Vec m = f.beta1 * vx::load(mean + i) + f.one_minus_beta1 * g;
    const Vec s = f.beta2 * vx::load(square + i) + f.one_minus_beta2 * g * g;
    const Vec denominator = vx::sqrt(s) * f.inverse_root + f.eps;
    vx::store(mean + i, m);
    vx::store(square + i, s);
    vx::store(value + i, f.keep * vx::load(value + i) - f.step_size * (m / denominator));
  }
}

int blas_int(std::int64_t n) { return static_cast<int>(n); }

// OpenBLAS has unpacked kernels for AVX-512 that it uses only for M * N * K <= 10^6. At small
// batches packing costs more than it saves, so a product cut into blocks of that size is faster
// than one call: 1.2 to 1.6 times at batch 32, 784 to 256. These block shapes were fast at batch 8
// to 512; at large batches, or if no block is small enough, one call is faster again.
struct Block {
  std::int64_t rows, cols;
};

Block choose_block(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k) {
  const Block whole{m, n};
  if (b_transposed && m >= 256) return whole;
  const std::int64_t rows = std::min<std::int64_t>(m, 64);
  std::int64_t cols = 1'000'000 / (rows * k);
  // With B transposed OpenBLAS's unpacked kernel is slow for wide blocks.
  if (b_transposed) cols = std::min({cols, 1024 / rows, std::int64_t{32}});
  if (cols >= n && rows == m) return whole;
  cols = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(cols)));
  if (cols < (b_transposed ? 16 : 32)) return whole;
  return {rows, cols};
}

// c [m, n] = op(a) [m, k] times op(b) [k, n], all dense and row-major.
void gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
          const float* a, const float* b, float* c) {
  const auto [rows, cols] = choose_block(b_transposed, m, n, k);
  for (std::int64_t i = 0; i < m; i += rows) {
    for (std::int64_t j = 0; j < n; j += cols) {
      cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
                  b_transposed ? CblasTrans : CblasNoTrans, blas_int(std::min(rows, m - i)),
                  blas_int(std::min(cols, n - j)), blas_int(k), 1.0f,
                  a_transposed ? a + i : a + i * k, blas_int(a_transposed ? m : k),
                  b_transposed ? b + j * k : b + j, blas_int(b_transposed ? k : n), 0.0f,
                  c + i * n + j, blas_int(n));
    }
  }
}

}  // namespace

FloorMlp::Buffer FloorMlp::make_buffer(std::int64_t count) {
  // Rounded up to whole vectors.
  const std::size_t bytes = (static_cast<std::size_t>(count) + lanes - 1) / lanes * sizeof(Vec);
  auto* p = static_cast<float*>(std::aligned_alloc(sizeof(Vec), bytes));
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return Buffer(p);
}

FloorMlp::Parameter FloorMlp::make_parameter(std::int64_t size, FloorOptimizer optimizer) {
  Parameter p;
  p.size = size;
  p.value = make_buffer(size);
  p.grad = make_buffer(size);
  if (optimizer == FloorOptimizer::AdamW) {
    p.mean = make_buffer(size);
    p.square = make_buffer(size);
  }
  return p;
}

FloorMlp::FloorMlp(std::vector<std::int64_t> sizes, std::int64_t batch, FloorOptimizer optimizer,
                   FloorHyper hyper)
    : batch_(batch), optimizer_(optimizer), hyper_(hyper) {
  const auto positive = [](std::int64_t n) { return n > 0; };
  if (sizes.size() < 2 || batch <= 0 || !std::all_of(sizes.begin(), sizes.end(), positive)) {
    throw std::invalid_argument("FloorMlp: got " + std::to_string(sizes.size()) +
                                " sizes and batch " + std::to_string(batch) +
                                "; pass {inputs, hidden..., classes} and a batch, all positive");
  }
  openblas_set_num_threads(1);
  for (std::size_t l = 0; l + 1 < sizes.size(); ++l) {
    Layer layer;
    layer.in = sizes[l];
    layer.out = sizes[l + 1];
    layer.weight = make_parameter(layer.in * layer.out, optimizer);
    layer.bias = make_parameter(layer.out, optimizer);
    layer.output = make_buffer(batch * layer.out);
    layer.output_grad = make_buffer(batch * layer.out);
    layers_.push_back(std::move(layer));
  }
}

float FloorMlp::step(const float* x, const std::int64_t* y) {
  const float loss = forward_backward(x, y);
  update();
  return loss;
}

float FloorMlp::forward_backward(const float* x, const std::int64_t* y) {
  check_labels(y);
  forward(x);
  const float loss = loss_and_grad(y);
  backward(x);
  return loss;
}

void FloorMlp::check_labels(const std::int64_t* y) const {
  const std::int64_t classes = layers_.back().out;
  for (std::int64_t r = 0; r < batch_; ++r) {
    if (y[r] < 0 || y[r] >= classes) {
      throw std::invalid_argument("FloorMlp: label " + std::to_string(y[r]) + " in row " +
                                  std::to_string(r) + "; labels lie in [0, " +
                                  std::to_string(classes) + ")");
    }
  }
}

void FloorMlp::forward(const float* x) {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    gemm(false, true, batch_, layer.out, layer.in, x, layer.weight.value.get(), layer.output.get());
    const bool last = l + 1 == layers_.size();
    const auto epilogue = last ? add_bias<false> : add_bias<true>;
    epilogue(layer.output.get(), layer.bias.value.get(), batch_, layer.out);
    x = layer.output.get();
  }
}

// One pass over the rows: loss = mean of log(sum exp z) - z_y, its gradient (softmax(z) -
// onehot(y)) / batch, and that gradient's column sums, which are the last bias's gradient.
float FloorMlp::loss_and_grad(const std::int64_t* y) {
  Layer& last = layers_.back();
  const std::int64_t classes = last.out;
  const float inverse_batch = 1.0f / static_cast<float>(batch_);
  float* bias_grad = last.bias.grad.get();
  std::fill_n(bias_grad, classes, 0.0f);
  double loss = 0.0;
  for (std::int64_t r = 0; r < batch_; ++r) {
    const float* z = last.output.get() + r * classes;
    float* g = last.output_grad.get() + r * classes;
    const float largest = *std::max_element(z, z + classes);
    float sum = 0.0f;
    for (std::int64_t c = 0; c < classes; ++c) sum += g[c] = std::exp(z[c] - largest);
    loss += std::log(sum) - (z[y[r]] - largest);
    const float scale = inverse_batch / sum;
    for (std::int64_t c = 0; c < classes; ++c) {
      g[c] = g[c] * scale - (c == y[r] ? inverse_batch : 0.0f);
      bias_grad[c] += g[c];
    }
  }
  return static_cast<float>(loss / static_cast<double>(batch_));
}

void FloorMlp::backward(const float* x) {
  for (std::size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    const float* input = l == 0 ? x : layers_[l - 1].output.get();
    gemm(true, false, layer.out, layer.in, batch_, layer.output_grad.get(), input,
         layer.weight.grad.get());
    if (l == 0) break;
    Layer& below = layers_[l - 1];
    gemm(false, false, batch_, layer.in, layer.out, layer.output_grad.get(),
         layer.weight.value.get(), below.output_grad.get());
    relu_mask_and_bias_grad(below.output_grad.get(), below.output.get(), below.bias.grad.get(),
                            batch_, layer.in);
  }
}

void FloorMlp::update() {
  ++steps_;
  const AdamWFactors factors = adamw_factors(hyper_, steps_);
  for (Layer& layer : layers_) {
    for (Parameter* p : {&layer.weight, &layer.bias}) {
      if (optimizer_ == FloorOptimizer::Sgd) {
        sgd_update(p->value.get(), p->grad.get(), p->size, static_cast<float>(hyper_.lr));
      } else {
        adamw_update(p->value.get(), p->grad.get(), p->mean.get(), p->square.get(), p->size,
                     factors);
      }
    }
  }
}

}  // namespace brrr::bench
