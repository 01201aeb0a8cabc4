#include "models/layers.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::models {

// The bound of PyTorch's default, kaiming_uniform_ with a = sqrt(5).
static Tensor uniform(const IntList& sizes, int64_t in, int64_t out) {
  BRRR_CHECK(in > 0 && out > 0, "Linear: sizes must be positive, got {} and {}", in, out);
  NoGradGuard guard;
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  return rand(sizes) * (2 * bound) - bound;
}

Linear::Linear(int64_t in, int64_t out, bool with_bias)
    : weight(register_parameter("weight", uniform({out, in}, in, out))),
      bias(with_bias ? register_parameter("bias", uniform({out}, in, out)) : Tensor()) {}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

static IntList table_sizes(int64_t n, int64_t width) {
  BRRR_CHECK(n > 0 && width > 0, "Embedding: sizes must be positive, got {} and {}", n, width);
  return {n, width};
}

Embedding::Embedding(int64_t n, int64_t width)
    : weight(register_parameter("weight", randn(table_sizes(n, width)))) {}

Tensor Embedding::forward(const Tensor& ids) { return embedding(weight, ids); }

static const IntList& check_normalized(const char* layer, const IntList& sizes) {
  BRRR_CHECK(!sizes.empty() && std::ranges::all_of(sizes, [](int64_t n) { return n > 0; }),
             "{}: normalizes over the last dims, whose sizes must be positive, got {}", layer,
             to_string(sizes));
  return sizes;
}

LayerNorm::LayerNorm(const IntList& normalized, double eps, bool with_bias)
    : weight(register_parameter("weight", ones(check_normalized("LayerNorm", normalized)))),
      bias(with_bias ? register_parameter("bias", zeros(normalized)) : Tensor()),
      normalized_(normalized),
      eps_(eps) {}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, normalized_, weight, bias, eps_);
}

RMSNorm::RMSNorm(const IntList& normalized, double eps)
    : weight(register_parameter("weight", ones(check_normalized("RMSNorm", normalized)))),
      normalized_(normalized),
      eps_(eps) {}

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, normalized_, weight, eps_); }

Dropout::Dropout(double p) : p_(p) {
  BRRR_CHECK(p >= 0 && p <= 1, "Dropout: p is a probability in [0, 1], got {}", p);
}

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p_, is_training()); }

void Sequential::add(std::function<Tensor(const Tensor&)> f) {
  BRRR_CHECK(f, "Sequential: part {} is an empty function", parts_.size());
  parts_.push_back(std::move(f));
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor h = x;
  for (const auto& part : parts_) h = part(h);
  return h;
}

}  // namespace brrr::models
