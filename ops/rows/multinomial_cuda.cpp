// Draws of positions by weight on a GPU: the CPU's samples (log of float64 may differ in its last
// bit, and with it the order of two clocks that are that close).
#include "core/device_kernel.h"
#include "ops/rows/order.h"
#include "ops/rows/order_cuda.h"
#include "ops/rows/order_kernels.h"
#include "ops/kinds/row_kernel.h"

namespace brrr {

namespace {

// Running sums within parts of 256 weights, and for each row what comes before each part and, last,
// its total: NaN if a weight cannot be taken.
BRRR_DEVICE_STRUCT(DrawByWeight, {
  const char* weights;
  char* sums;
  char* before;
  char* out;
  char* fault;
  long op;
  long rows;
  long n;
  long parts;
  long samples;
  long seed;
  long draw;
  const char* key;
});
static_assert(kDrawPart == 256);

constexpr char kUniformText[] = R"(
// Uniform i in [0, 1), a multiple of 2^-53, of words 2 i and 2 i + 1.
BRRR_VX double uniform53(long i, const DrawByWeight& p) {
  const Words4 w = draw_words(p.key, 1, p.seed, p.draw, i / 2);
  const unsigned low = i & 1 ? w.v[2] : w.v[0], high = i & 1 ? w.v[3] : w.v[1];
  return (double)(((unsigned long)high << 32 | low) >> 11) * 0x1p-53;
}
BRRR_VX bool valid(double weight) { return weight >= 0 && weight < (double)infinity; }
)";

constexpr auto kSumsText = join_text(kUniformText, R"(
KERNEL(part_sums, DrawByWeight, 64) {
  const long i = (long)blockIdx.x * 64 + threadIdx.x;
  if (i >= p.rows * p.parts) return;
  const long row = i / p.parts * p.n, begin = i % p.parts * 256;
  const long end = begin + 256 < p.n ? begin + 256 : p.n;
  double* sums = (double*)p.sums + row;
  double sum = 0;
  bool good = true;
  for (long at = begin; at < end; ++at) {
    const double w = to_f64(get((const T*)p.weights + row + at))[0];
    good = good && valid(w);
    sums[at] = sum += w;
  }
  if (!good) sums[end - 1] = (double)not_a_number;
}
)");
constexpr DeviceKernel sums_kernel{"part_sums", DrawByWeightText, 64, kSumsText.data()};

constexpr DeviceKernel totals_kernel{"row_sums", DrawByWeightText, 64, R"(
KERNEL(row_sums, DrawByWeight, 64) {
  const long row = (long)blockIdx.x * 64 + threadIdx.x;
  if (row >= p.rows) return;
  double* before = (double*)p.before + row * (p.parts + 1);
  before[0] = 0;
  for (long part = 0; part < p.parts; ++part) {
    const long end = (part + 1) * 256 < p.n ? (part + 1) * 256 : p.n;
    before[part + 1] = before[part] + ((const double*)p.sums)[row * p.n + end - 1];
  }
}
)"};

// The first position whose running sum exceeds a uniform share of the total; if that rounds up to
// the total, the last positive weight.
constexpr auto kDrawText = join_text(kUniformText, R"(
KERNEL(draw, DrawByWeight, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.rows * p.samples) return;
  const long row = i / p.samples;
  const double* sums = (const double*)p.sums + row * p.n;
  const double* before = (const double*)p.before + row * (p.parts + 1);
  const double total = before[p.parts];
  if (!(total > 0 && valid(total))) {
    bad_row(p.fault, row, p.op);
    ((long*)p.out)[i] = 0;
    return;
  }
  const double share = uniform53(i, p) * total;
  long low = 0, high = p.n - 1;
  while (low < high) {
    const long middle = (low + high) / 2;
    const double sum = before[middle / 256] + sums[middle];
    if (share >= total ? sum < total : sum <= share)
      low = middle + 1;
    else
      high = middle;
  }
  ((long*)p.out)[i] = low;
}
)");
constexpr DeviceKernel draw_kernel{"draw", DrawByWeightText, 256, kDrawText.data()};

// Without replacement: the order in which exponential clocks ring (ops/rows/multinomial.cpp).
constexpr auto kClocksText = join_text(kEntryText, OrderKeyText, kUniformText, R"(
KERNEL(clocks, DrawByWeight, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.rows * p.n) return;
  const f64 w = to_f64(get((const T*)p.weights + i));
  if (!valid(w[0])) bad_row(p.fault, i / p.n, p.op);
  const f64 time = log(-log(1.0 - f64(uniform53(i, p)))) - log(w);
  const double at = w[0] > 0 ? time[0] : (double)infinity;
  set_entry(((Wide*)p.sums)[i], order_key(at), i % p.n);
}
)");
constexpr DeviceKernel clocks_kernel{"clocks", DrawByWeightText, 256, kClocksText.data()};

// A clock that never rings has been drawn if there are fewer positive weights than samples.
constexpr auto kTakeText = join_text(kEntryText, OrderKeyText, R"(
KERNEL(take, DrawByWeight, 256) {
  const long i = (long)blockIdx.x * 256 + threadIdx.x;
  if (i >= p.rows * p.samples) return;
  const Wide e = ((const Wide*)p.sums)[i];
  const bool rings = e.key < order_key((double)infinity);
  if (!rings) bad_row(p.fault, i / p.samples, p.op);
  ((long*)p.out)[i] = rings ? e.at : 0;
}
)");
constexpr DeviceKernel take_kernel{"take", DrawByWeightText, 256, kTakeText.data()};

void draw_with_replacement(DrawByWeight& a, DType dtype, Device device) {
  a.parts = (a.n + kDrawPart - 1) / kDrawPart;
  const Tensor sums = raw_empty({a.rows, a.n}, kFloat64, device);
  const Tensor before = raw_empty({a.rows, a.parts + 1}, kFloat64, device);
  a.sums = sums.impl()->data();
  a.before = before.impl()->data();
  run_kernel(sums_kernel, {.t = dtype}, {blocks_for(a.rows * a.parts, 64)}, a);
  run_kernel(totals_kernel, {}, {blocks_for(a.rows, 64)}, a);
  run_kernel(draw_kernel, {}, {blocks_for(a.rows * a.samples)}, a);
}

void draw_without_replacement(DrawByWeight& a, DType dtype, Device device) {
  const EntryRows entries(true, a.rows, a.n, device);
  a.sums = entries.data();
  run_kernel(clocks_kernel, {.t = dtype}, {blocks_for(a.rows * a.n)}, a);
  const Tensor first = sort_entries(entries, a.samples);
  a.sums = first.impl()->data();
  run_kernel(take_kernel, {}, {blocks_for(a.rows * a.samples)}, a);
}

}  // namespace

void multinomial_cuda(OpCall& c) {
  const TensorImpl& x = *c.in[0];
  if (x.numel == 0) return;
  const DenseInput dense(&x, x.dtype);
  DrawByWeight a{};
  a.weights = dense.as<char>();
  a.out = c.out[0].impl()->data();
  a.fault = device_fault();
  a.op = fault_op(c);
  a.n = x.sizes[x.ndim - 1];
  a.rows = x.numel / a.n;
  const auto attrs = c.attrs.as<MultinomialAttrs>();
  a.seed = static_cast<int64_t>(attrs.draw.seed);
  a.draw = static_cast<int64_t>(attrs.draw.number);
  a.key = c.control;
  a.samples = attrs.samples;
  (with_replacement(c) ? draw_with_replacement : draw_without_replacement)(a, x.dtype, x.device);
}

}  // namespace brrr
