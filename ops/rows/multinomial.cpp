// Draws of positions by weight. Every sample is a pure function of (seed, draw, element), in 53-bit
// uniforms: words 2i and 2i + 1 of the draw make number i.
#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/call.h"
#include "core/check.h"
#include "core/context.h"
#include "core/rng.h"
#include "ops/kinds/row_kernel.h"
#include "ops/library_ops.h"
#include "ops/vocabulary/num.h"
#include "ops/rows/order.h"
#include "ops/rows/order_kernels.h"
#include "ops/kinds/pointwise.h"
#include "ops/vocabulary/vec.h"
#include "ops/vocabulary/vec_math.h"
#include "ops/vocabulary/vec_random.h"

namespace brrr {

namespace {

constexpr int64_t kGrain = 1 << 12;  // Elements worth a thread.

/// Uniforms i .. i + 7 in [0, 1), multiples of 2^-53; i is a multiple of 8.
struct Uniforms {
  double v[8];
  Uniforms(const DrawAttrs& draw, int64_t i) {
    const vx::u32 w = vx::philox16(static_cast<uint64_t>(2 * i), draw.seed, draw.number);
    for (int k = 0; k < 8; ++k) {
      const uint64_t word = uint64_t{w[2 * k + 1]} << 32 | w[2 * k];
      v[k] = static_cast<double>(word >> 11) * 0x1p-53;
    }
  }
};

struct Problem {
  double* weights;
  int64_t* out;
  int64_t rows, n, samples;
};

// --- values: checked before anything is written --------------------------------------------------

void check_row(const double* w, int64_t n, int64_t row, int64_t needed) {
  int64_t positive = 0;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    BRRR_CHECK(w[i] >= 0 && std::isfinite(w[i]),
               "multinomial: weight {} of row {} is {}; weights must be finite and not negative", i,
               row, w[i]);
    positive += w[i] > 0;
    total += w[i];
  }
  BRRR_CHECK(positive > 0,
             "multinomial: the weights of row {} are all zero; one at least must be "
             "positive",
             row);
  BRRR_CHECK(std::isfinite(total), "multinomial: the weights of row {} sum to inf; scale them down",
             row);
  BRRR_CHECK(positive >= needed,
             "multinomial: {} samples without replacement, but row {} has {} positive weights; "
             "draw fewer or with replacement",
             needed, row, positive);
}

// --- with replacement: the inverse of the running sums -------------------------------------------

// Each part of kDrawPart weights is summed by itself, from its first, then the sum of what comes
// before is added to each: an order that a GPU can follow side by side, and never falling.
void sum_up(const Problem& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    double *w = p.weights + r * p.n, before = 0;
    for (int64_t begin = 0; begin < p.n; begin += kDrawPart) {
      const int64_t end = std::min(begin + kDrawPart, p.n);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) w[i] = before + (sum += w[i]);
      before = w[end - 1];
    }
  }
}

// The first position whose running sum exceeds a uniform share of the total, so that a weight of 0
// is never drawn.
int64_t position_of(const double* sums, int64_t n, double u) {
  const double total = sums[n - 1], share = u * total;
  // The product may round up to the total: then the last positive weight it is.
  if (share >= total) return std::lower_bound(sums, sums + n, total) - sums;
  return std::upper_bound(sums, sums + n, share) - sums;
}

void draw_with_replacement(const DrawAttrs& draw, const Problem& p) {
  sum_up(p);
  const int64_t all = p.rows * p.samples;
  parallel_for((all + 7) / 8, kGrain / 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * 8; i < std::min(end * 8, all); i += 8) {
      const Uniforms u(draw, i);
      for (int64_t k = 0; k < std::min<int64_t>(8, all - i); ++k) {
        p.out[i + k] = position_of(p.weights + (i + k) / p.samples * p.n, p.n, u.v[k]);
      }
    }
  });
}

// --- without: a race of exponential clocks -------------------------------------------------------

// The k smallest of E / w, with E exponential, are k draws without replacement in their order
// (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006); compared by their
// logarithms, the Gumbel form (Kool et al., "Stochastic beams and where to find them", 2019), which
// neither overflow nor underflow.
void start_clocks(const DrawAttrs& draw, const Problem& p, WideEntry* entries) {
  const int64_t all = p.rows * p.n;
  parallel_for((all + 15) / 16, kGrain / 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * 16; i < std::min(end * 16, all); i += 16) {
      const Uniforms low(draw, i), high(draw, i + 8);
      const int lanes = static_cast<int>(std::min<int64_t>(16, all - i));
      vx::f64 u{};
      for (int k = 0; k < 16; ++k) u[k] = k < 8 ? low.v[k] : high.v[k - 8];
      const vx::f64 w = lanes == 16 ? vx::load(p.weights + i) : vx::load_n(p.weights + i, lanes);
      const vx::f64 time = vx::log(-vx::log(1.0 - u)) - vx::log(w);
      for (int k = 0; k < lanes; ++k) {
        entries[i + k] = WideEntry(order_key(w[k] > 0 ? time[k] : HUGE_VAL), (i + k) % p.n);
      }
    }
  });
}

void draw_without_replacement(const DrawAttrs& draw, const Problem& p) {
  const Tensor scratch = raw_empty({p.rows * p.n * 2}, kInt64, kCPU);
  auto* entries = reinterpret_cast<WideEntry*>(scratch.impl()->data());
  start_clocks(draw, p, entries);
  parallel_for(p.rows, std::max<int64_t>(1, kGrain / p.n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      smallest_first(entries + r * p.n, p.n, p.samples);
      for (int64_t s = 0; s < p.samples; ++s) {
        p.out[r * p.samples + s] = entries[r * p.n + s].at();
      }
    }
  });
}

// --- the row: attribute words are seed, draw, number of samples, replacement ---------------------

void multinomial_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  BRRR_CHECK(is_floating(x.dtype),
             "multinomial: takes floating weights, got {}; convert with "
             "to(kFloat32)",
             describe(&x));
  BRRR_CHECK((x.ndim == 1 || x.ndim == 2) && x.sizes[x.ndim - 1] > 0,
             "multinomial: takes weights [n] or [rows, n] with n > 0, got {}", describe(&x));
  const auto a = c.attrs.as<MultinomialAttrs>();
  BRRR_CHECK(a.samples > 0, "multinomial: the number of samples must be positive, got {}",
             a.samples);
  BRRR_CHECK(a.replacement || a.samples <= x.sizes[x.ndim - 1],
             "multinomial: {} samples without replacement of {} weights ({}); draw fewer or with "
             "replacement",
             a.samples, x.sizes[x.ndim - 1], describe(&x));
  OutMeta& m = c.meta[0];
  m.dtype = kInt64;
  m.device = x.device;
  m.sizes = x.size_list();
  m.sizes[x.ndim - 1] = a.samples;
}

void check_weights(const OpCall& c) {
  const DenseInput weights(c.in[0], kFloat64);
  const int64_t n = c.in[0]->sizes[c.in[0]->ndim - 1];
  const int64_t needed = with_replacement(c) ? 1 : c.attrs.as<MultinomialAttrs>().samples;
  for (int64_t r = 0; r < c.in[0]->numel / n; ++r) {
    check_row(weights.as<double>() + r * n, n, r, needed);
  }
}

void multinomial_cpu(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  if (x.numel == 0) return;
  const Tensor weights = raw_empty(x.size_list(), kFloat64, x.device);
  copy_now(*weights.impl(), x);
  const int64_t n = x.sizes[x.ndim - 1];
  const auto a = c.attrs.as<MultinomialAttrs>();
  const Problem p{reinterpret_cast<double*>(weights.impl()->data()),
                  reinterpret_cast<int64_t*>(c.out[0].impl()->data()), x.numel / n, n, a.samples};
  with_replacement(c) ? draw_with_replacement(a.draw, p) : draw_without_replacement(a.draw, p);
}

// Weights in double, and an entry for each without replacement.
int64_t multinomial_scratch(const OpCall& c) {
  return scratch_for(c.in[0]->numel, sizeof(double)) +
         scratch_for(c.in[0]->numel, sizeof(WideEntry));
}

const OpDef multinomial_row{"multinomial",
                            "positions drawn by weight",
                            {.kind = OpKind::Random,
                             .infer = multinomial_infer,
                             .check_values = check_weights,
                             .kernel = {{multinomial_cpu}, {multinomial_cuda}},
                             .scratch = multinomial_scratch}};

}  // namespace

Tensor multinomial(const Tensor& probs, int64_t num_samples, bool replacement) {
  BRRR_CHECK(probs.defined(), "multinomial: the weights are an undefined tensor; assign one first");
  const Inputs in{probs};
  OpCall c(multinomial_row, in.data(), in.size());
  c.attrs.push(MultinomialAttrs{{}, num_samples, replacement});
  c.infer();  // A call that throws takes no draw.
  c.attrs.n = 0;
  push_draw(c);
  c.attrs.push(num_samples);
  c.attrs.push(int64_t{replacement});
  try {
    dispatch(c);
  } catch (...) {
    if (!context.recorder) return_draw(c.attrs.as<DrawAttrs>().number);
    throw;
  }
  return std::move(c.out[0]);
}

}  // namespace brrr
