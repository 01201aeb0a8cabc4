// Scaled dot-product attention.
#include <cmath>

#include "core/check.h"
#include "ops/composite.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/reduction_ops.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

constexpr double kInfinity = __builtin_inf();

// Softmax over the keys that a query may see. A row without any is zeros: its sum is taken as 1.
Tensor probabilities(const Tensor& q, const Tensor& k, const Tensor& mask, bool causal,
                     double scale) {
  Tensor s = matmul(q, k.transpose(-2, -1)) * scale;
  if (mask.defined()) s = mask.dtype() == kBool ? where(mask, s, -kInfinity) : s + widened(mask);
  if (causal) {
    const Tensor row = arange(q.size(-2)).unsqueeze(1), column = arange(k.size(-2));
    s = where((column <= row).to(s.device()), s, -kInfinity);
  }
  if (s.numel() == 0) return s;
  const Tensor max = amax(s.detach(), -1, true);
  const Tensor e = exp(s - where(max == -kInfinity, 0.0, max));
  const Tensor total = sum(e, -1, true);
  return e * reciprocal(where(total == 0.0, 1.0, total));
}

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  constexpr const char* op = "scaled_dot_product_attention";
  BRRR_CHECK(q.defined() && k.defined() && v.defined(), "{}: q, k or v is undefined; assign it",
             op);
  for (const Tensor& t : {q, k, v}) {
    BRRR_CHECK(is_floating(t.dtype()), "{}: takes floating dtypes, got {}; convert with to(dtype)",
               op, describe(t.impl()));
    BRRR_CHECK(t.dtype() == q.dtype() && t.device() == q.device(),
               "{}: operands are {} on {} and {} on {}; convert one with to()", op,
               describe(q.impl()), name(q.device()), describe(t.impl()), name(t.device()));
    BRRR_CHECK(t.dim() >= 2, "{}: takes [.., length, width], got {}; add dims with unsqueeze", op,
               describe(t.impl()));
  }
  BRRR_CHECK(q.size(-1) == k.size(-1),
             "{}: q {} and k {} differ in their last dim; project them "
             "to one width",
             op, describe(q.impl()), describe(k.impl()));
  BRRR_CHECK(k.size(-2) == v.size(-2),
             "{}: k {} and v {} differ in length; give one value for "
             "each key",
             op, describe(k.impl()), describe(v.impl()));
  BRRR_CHECK(!o.mask.defined() || o.mask.dtype() == kBool || is_floating(o.mask.dtype()),
             "{}: the mask is bool (true takes part) or floating (added), got {}; convert with "
             "to(kBool)",
             op, describe(o.mask.impl()));
  BRRR_CHECK(o.dropout >= 0 && o.dropout <= 1, "{}: dropout is a probability in [0, 1], got {}", op,
             o.dropout);
  BRRR_CHECK(std::isfinite(o.scale), "{}: scale must be finite, got {}; 0 means 1 / sqrt(width)",
             op, o.scale);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& o) {
  check_attention(q, k, v, o);
  const double width = static_cast<double>(q.size(-1));
  const double scale = o.scale != 0 ? o.scale : width > 0 ? 1 / std::sqrt(width) : 1;
  const Tensor p = probabilities(widened(q), widened(k), o.mask, o.causal, scale);
  return converted(matmul(dropout(p, o.dropout, o.training), widened(v)), q.dtype());
}

Tensor rotary_embedding(const Tensor& x, const Tensor& positions, double base) {
  const int64_t half = x.size(-1) / 2;
  const Tensor frequency =
      exp(arange(half).to(kFloat64) * (-std::log(base) / static_cast<double>(half)));
  const Tensor angle = positions.to(kFloat64).unsqueeze(1) * frequency;
  const DType t = compute_type(x.dtype());
  const Tensor c = converted(cos(angle), t), s = converted(sin(angle), t);
  const Tensor a = widened(x).narrow(-1, 0, half), b = widened(x).narrow(-1, half, half);
  return converted(cat({a * c - b * s, b * c + a * s}, -1), x.dtype());
}

}  // namespace brrr
