// Sampling of positions by weight. Each sample is a pure function of (seed, draw, element), from
// 53-bit uniforms: words 2i and 2i + 1 of the draw form uniform i.
#include <algorithm>

#include "core/call.h"
#include "core/check.h"
#include "core/context.h"
#include "core/rng.h"
#include "ops/kinds/row_kernel.h"
#include "ops/library_ops.h"
#include "ops/rows/order.h"
#include "ops/vocabulary/vec_math.h"
#include "ops/vocabulary/vec_random.h"

namespace brrr {

// clang-format off
namespace vx {
BRRR_DEVICE_FUNCTIONS(kDrawText,
  /* A uniform in [0, 1), a multiple of 2^-53, from two random words. */
  BRRR_VX double uniform53(unsigned low, unsigned high) {
    return (double)(((unsigned long)high << 32 | low) >> 11) * 0x1p-53;
  }
  BRRR_VX bool valid_weight(double w) { return w >= 0 && w - w == 0; }
  /* The first of n positions whose cumulative sum exceeds u * total, so that a weight of 0 is never
     drawn. u * total may round up to the total: then the position of the last positive weight. */
  template <class Sums> BRRR_VX long drawn(const Sums& sum, long n, double total, double u) {
    const double scale = total < 0x1p-900 ? 0x1p900 : 1;  /* Against underflow. */
    total *= scale;
    const double share = u * total;
    long low = 0, high = n - 1;
    while (low < high) {
      const long middle = (low + high) / 2;
      const double to_here = sum(middle) * scale;
      if (share >= total ? to_here < total : to_here <= share) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  /* The time at which an exponential clock of rate w rings, as log(E / w), from a uniform u. */
  template <class V> BRRR_VX V ringing(V u, V w) { return log(-log(1.0 - u)) - log(w); }
);
}  // namespace vx
// clang-format on

namespace {

/// Weights per part of the cumulative sums (a GPU thread's part), for sampling with replacement.
constexpr int64_t kDrawPart = 256;

struct MultinomialAttrs {
  int64_t samples, replacement;
  uint64_t seed, draw;
};
/// A single sample is drawn as with replacement, which is cheaper.
bool with_replacement(const MultinomialAttrs& a) { return a.replacement || a.samples == 1; }

constexpr int64_t kGrain = 1 << 12;  // Elements worth a thread.

/// Calls f(i, lanes, uniforms i .. i + 15) until there are n uniforms.
template <class F> void for_uniforms(const MultinomialAttrs& a, int64_t n, const F& f) {
  parallel_for((n + 15) / 16, kGrain / 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * 16; i < std::min(end * 16, n); i += 16) {
      vx::f64 u{};
      for (int half : {0, 8}) {
        const auto first = static_cast<uint64_t>(2 * (i + half));
        const vx::u32 w = vx::philox16(first, a.seed, a.draw);
        for (int k = 0; k < 8; ++k) u[half + k] = vx::uniform53(w[2 * k], w[2 * k + 1]);
      }
      f(i, static_cast<int>(std::min<int64_t>(16, n - i)), u);
    }
  });
}

// --- values: checked before anything is written --------------------------------------------------

void check_weights(const OpCall& c) {
  const DenseInput weights(c.in[0], kFloat64);
  const int64_t n = c.in[0]->sizes[c.in[0]->ndim - 1];
  const auto a = c.attrs.as<MultinomialAttrs>();
  const int64_t needed = with_replacement(a) ? 1 : a.samples;
  for (int64_t row = 0; row < c.in[0]->numel / n; ++row) {
    const double* w = weights.as<double>() + row * n;
    int64_t positive = 0;
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
      BRRR_CHECK(vx::valid_weight(w[i]),
                 "multinomial: weight {} of row {} is {}; weights must be finite and not negative",
                 i, row, w[i]);
      positive += w[i] > 0;
      total += w[i];
    }
    BRRR_CHECK(positive > 0,
               "multinomial: the weights of row {} are all zero; one at least must be positive",
               row);
    BRRR_CHECK(vx::valid_weight(total),
               "multinomial: the weights of row {} sum to inf; scale them down", row);
    BRRR_CHECK(positive >= needed,
               "multinomial: {} samples without replacement, but row {} has {} positive weights; "
               "draw fewer or with replacement",
               needed, row, positive);
  }
}

// --- on the CPU ----------------------------------------------------------------------------------

// The positions of each row's first clocks, as many as are sampled, in order; on any device.
void draw_first(const OpCall& c, const Tensor& clocks, void (*order)(OpCall&)) {
  TensorImpl* in[] = {clocks.impl()};
  OpCall first(*c.op, in, 1);
  first.attrs.push(OrderAttrs{.descending = false});
  first.out[0] = c.out[0];
  order(first);
}

void multinomial_cpu(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  if (x.numel == 0) return;
  const auto a = c.attrs.as<MultinomialAttrs>();
  const int64_t n = x.sizes[x.ndim - 1], rows = x.numel / n;
  const Tensor weights = copied(x, kFloat64);
  auto* const w = reinterpret_cast<double*>(weights.impl()->data());
  if (!with_replacement(a)) {
    // A race of exponential clocks: the k smallest of E / w, with E exponential, are k draws
    // without replacement in their order (Efraimidis and Spirakis, "Weighted random sampling with a
    // reservoir", 2006); compared by their logarithms, the Gumbel form (Kool et al., "Stochastic
    // beams and where to find them", 2019), which neither overflow nor underflow.
    for_uniforms(a, x.numel, [=](int64_t i, int lanes, const vx::f64& u) {
      const auto rate = take<vx::f64>(w + i, lanes);
      const auto never = vx::f64{} + __builtin_inf();
      put(w + i, vx::where(vx::gt(rate, vx::f64{}), vx::ringing(u, rate), never), lanes);
    });
    return draw_first(c, weights, order_cpu);
  }
  // Inverts the cumulative sums. Each part of kDrawPart weights is summed by itself from its first,
  // then the sum of the earlier parts is added to each: an order that a GPU can follow in parallel
  // and that keeps the sums monotonic.
  for (int64_t r = 0; r < rows; ++r) {
    double *sums = w + r * n, before = 0;
    for (int64_t begin = 0; begin < n; begin += kDrawPart) {
      const int64_t end = std::min(begin + kDrawPart, n);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sums[i] = before + (sum += sums[i]);
      before = sums[end - 1];
    }
  }
  auto* const out = reinterpret_cast<int64_t*>(c.out[0].impl()->data());
  for_uniforms(a, rows * a.samples, [=](int64_t i, int lanes, const vx::f64& u) {
    for (int k = 0; k < lanes; ++k) {
      const double* sums = w + (i + k) / a.samples * n;
      out[i + k] = vx::drawn([=](long at) { return sums[at]; }, n, sums[n - 1], u[k]);
    }
  });
}

// --- on a GPU ------------------------------------------------------------------------------------

// The CPU's samples, except that a float64 log may differ in its last bit and swap two clocks that
// are that close.
//
// `sums`: cumulative sums within parts of 256 weights, or clocks. `before`: for each row the sum
// before each part and, last, the total: NaN if a weight is invalid.
BRRR_DEVICE_STRUCT(DrawByWeight, {
  const char* weights;
  char *sums, *before, *out, *fault;
  long op, rows, n, parts, samples, seed, draw;
  const char* key;
});
static_assert(kDrawPart == 256);

constexpr char kUniformText[] = R"(
BRRR_VX double uniform_at(long i, const DrawByWeight& p) {
  const Words4 w = draw_words(p.key, 1, p.seed, p.draw, i / 2);
  return i & 1 ? uniform53(w.v[2], w.v[3]) : uniform53(w.v[0], w.v[1]);
}
)";

constexpr DeviceKernel sums_kernel{"part_sums", DrawByWeightText, 64, {vx::kDrawText, R"(
EACH_KERNEL(part_sums, DrawByWeight, 64, i, p.rows * p.parts) {
  const long row = i / p.parts * p.n, begin = i % p.parts * 256;
  const long end = begin + 256 < p.n ? begin + 256 : p.n;
  double* sums = (double*)p.sums + row;
  double sum = 0;
  bool good = true;
  for (long at = begin; at < end; ++at) {
    const double w = to_f64(get((const T*)p.weights + row + at))[0];
    good = good && valid_weight(w);
    sums[at] = sum += w;
  }
  if (!good) sums[end - 1] = (double)not_a_number;
}
)"}};

constexpr DeviceKernel totals_kernel{"row_sums", DrawByWeightText, 64, {R"(
EACH_KERNEL(row_sums, DrawByWeight, 64, row, p.rows) {
  double* before = (double*)p.before + row * (p.parts + 1);
  before[0] = 0;
  for (long part = 0; part < p.parts; ++part) {
    const long end = (part + 1) * 256 < p.n ? (part + 1) * 256 : p.n;
    before[part + 1] = before[part] + ((const double*)p.sums)[row * p.n + end - 1];
  }
}
)"}};

constexpr DeviceKernel draw_kernel{"draw", DrawByWeightText, 256, {vx::kDrawText, kUniformText, R"(
EACH_KERNEL(draw, DrawByWeight, 256, i, p.rows * p.samples) {
  const long row = i / p.samples;
  const double* sums = (const double*)p.sums + row * p.n;
  const double* before = (const double*)p.before + row * (p.parts + 1);
  const double total = before[p.parts];
  if (!(total > 0 && valid_weight(total))) {
    bad_row(p.fault, row, p.op);
    ((long*)p.out)[i] = 0;
    return;
  }
  const auto sum = [=](long at) { return before[at / 256] + sums[at]; };
  ((long*)p.out)[i] = drawn(sum, p.n, total, uniform_at(i, p));
}
)"}};

constexpr DeviceKernel clocks_kernel{
    "clocks", DrawByWeightText, 256, {vx::kDrawText, kUniformText, R"(
EACH_KERNEL(clocks, DrawByWeight, 256, i, p.rows * p.n) {
  const f64 w = to_f64(get((const T*)p.weights + i));
  if (!valid_weight(w[0])) bad_row(p.fault, i / p.n, p.op);
  ((double*)p.sums)[i] = w[0] > 0 ? ringing(f64(uniform_at(i, p)), w)[0] : (double)infinity;
}
)"}};

// With fewer positive weights than samples, the last sample of a row is a clock that never rings.
constexpr DeviceKernel last_kernel{"last_clock", DrawByWeightText, 64, {R"(
EACH_KERNEL(last_clock, DrawByWeight, 64, row, p.rows) {
  const long at = ((const long*)p.out)[(row + 1) * p.samples - 1];
  if (!(((const double*)p.sums)[row * p.n + at] < (double)infinity)) bad_row(p.fault, row, p.op);
}
)"}};

void multinomial_cuda(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  if (x.numel == 0) return;
  const DenseInput dense(&x, x.dtype);
  const auto attrs = c.attrs.as<MultinomialAttrs>();
  DrawByWeight a{};
  a.weights = dense.as<char>();
  a.out = c.out[0].impl()->data();
  a.fault = device_fault();
  a.op = fault_op(c);
  a.n = x.sizes[x.ndim - 1];
  a.rows = x.numel / a.n;
  a.parts = blocks_for(a.n, kDrawPart);
  a.seed = static_cast<int64_t>(attrs.seed);
  a.draw = static_cast<int64_t>(attrs.draw);
  a.key = c.control;
  a.samples = attrs.samples;
  const Tensor sums = raw_empty({a.rows, a.n}, kFloat64, x.device);  // Or clocks.
  a.sums = sums.impl()->data();
  if (with_replacement(attrs)) {
    const Tensor before = raw_empty({a.rows, a.parts + 1}, kFloat64, x.device);
    a.before = before.impl()->data();
    run_kernel(sums_kernel, {.t = x.dtype}, {blocks_for(a.rows * a.parts, 64)}, a);
    run_kernel(totals_kernel, {}, {blocks_for(a.rows, 64)}, a);
    run_kernel(draw_kernel, {}, {blocks_for(a.rows * a.samples)}, a);
  } else {
    run_kernel(clocks_kernel, {.t = x.dtype}, {blocks_for(a.rows * a.n)}, a);
    draw_first(c, sums, order_cuda);
    run_kernel(last_kernel, {}, {blocks_for(a.rows, 64)}, a);
  }
}

// --- the row -------------------------------------------------------------------------------------

void multinomial_infer(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  BRRR_CHECK(is_floating(x.dtype),
             "multinomial: takes floating weights, got {}; convert with to(kFloat32)",
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
  set_meta(c, 0, kInt64, x.size_list());
  c.meta[0].sizes[x.ndim - 1] = a.samples;
}

// Weights in double, and the entries to sort them.
int64_t multinomial_scratch(const OpCall& c) {
  return scratch_for(c.in[0]->numel, sizeof(double)) + scratch_for(c.in[0]->numel, sizeof(Wide));
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
  const Inputs in{defined("multinomial", probs)};
  OpCall c(multinomial_row, in.data(), in.size());
  c.attrs.push(num_samples);
  c.attrs.push(int64_t{replacement});
  c.infer();  // A call that throws takes no draw.
  push_draw(c);
  try {
    dispatch(c);
  } catch (...) {
    if (!context.recorder) return_draws(c.attrs.as<MultinomialAttrs>().draw, 1);
    throw;
  }
  return std::move(c.out[0]);
}

}  // namespace brrr
