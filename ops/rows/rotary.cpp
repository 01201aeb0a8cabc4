// Rotary position embedding. A row rotates by angles; its gradient rotates back.
#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/check.h"
#include "core/device_kernel.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/pointwise.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/rows/library_kernels.h"
#include "ops/view_ops.h"

namespace brrr {

namespace {

struct FrequencyAttrs {
  double base;
  int64_t width;
  int64_t count() const { return width / 2; }
  /// The angle of pair i at position 1.
  double at(int64_t i) const {
    return std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
  }
};

void frequencies_cpu(OpCall& c) {
  const auto a = c.attrs.as<FrequencyAttrs>();
  auto* to = reinterpret_cast<double*>(c.out[0].impl()->data());
  for (int64_t i = 0; i < a.count(); ++i) to[i] = a.at(i);
}

BRRR_DEVICE_STRUCT(FrequencyArguments, {
  char* to;
  long count;
  double frequency[256];
});

// The frequencies are kernel arguments: a GPU's pow() does not give the host's bits.
constexpr DeviceKernel frequencies_kernel{"rotary_frequencies", FrequencyArgumentsText, 256, {R"(
KERNEL(rotary_frequencies, FrequencyArguments, 256) {
  const int i = threadIdx.x;
  if (i < p.count) ((double*)p.to)[i] = p.frequency[i];
}
)"}};

void frequencies_cuda(OpCall& c) {
  const auto a = c.attrs.as<FrequencyAttrs>();
  auto* to = reinterpret_cast<double*>(c.out[0].impl()->data());
  for (int64_t first = 0; first < a.count(); first += 256) {
    FrequencyArguments part{
        reinterpret_cast<char*>(to + first), std::min<int64_t>(256, a.count() - first), {}};
    for (int64_t i = 0; i < part.count; ++i) part.frequency[i] = a.at(first + i);
    run_kernel(frequencies_kernel, {}, {1}, part);
  }
}

const OpDef frequencies_row{
    "rotary_frequencies",
    "base^(-2i / width)",
    {.infer = [](OpCall& c) { set_made_meta(c, kFloat64, {c.attrs.as<FrequencyAttrs>().count()}); },
     .kernel = {{frequencies_cpu}, {frequencies_cuda}},
     .scratch = no_scratch,
     .gradient_row = true}};  // Not public.

// The angle modulo 2 pi, to float64's precision, so that float32 is as accurate at large positions
// as at small ones.
const PointwiseOp angle_row{"rotary_angle", "position * frequency, modulo 2 pi",
                            PointwiseTraits{.wide = true}, [](auto frequency, auto position) {
                              const double turn = 0x1.921fb54442d18p+2, low = 0x1.1a62633145c07p-52;
                              const auto angle = frequency * position;
                              const auto turns = (angle * (1 / turn) + 0x1.8p+52) - 0x1.8p+52;
                              return m::fma(-turns, low, m::fma(-turns, turn, angle));
                            }};

Tensor angles(const Tensor& positions, const FrequencyAttrs& a, DType compute) {
  const Tensor frequencies = call(frequencies_row, {}, positions.device(), a);
  const Tensor at = unsqueeze(positions, -1);
  if (compute == kFloat64) return frequencies * at;
  return PointwiseCall(angle_row).dtype(compute).add(frequencies).add(at).run();
}

const PointwiseOp pair_row{
    "rotary_pair", "(a, b) rotated by an angle", {}, [](auto a, auto b, auto cosine, auto sine) {
      return std::tuple{a * cosine - b * sine, b * cosine + a * sine};
    }};

Tensor half_of(const TensorImpl& t, int which) {
  IntList sizes = t.size_list();
  const int last = t.ndim - 1;
  sizes[last] /= 2;
  return memory_view(t, sizes, t.stride_list(), t.offset + which * sizes[last] * t.strides[last]);
}

// Runs pair_row on the halves of x, on any device.
void rotary_run(OpCall& c) {
  const TensorImpl &x = *c.in[0], &y = *c.out[0].impl();
  if (y.numel == 0) return;
  const Tensor a = half_of(x, 0), b = half_of(x, 1);
  TensorImpl* in[] = {a.impl(), b.impl(), c.in[1], c.in[2]};
  OpCall pairs(pair_row, in, 4);
  pairs.into = true;
  pairs.out[0] = half_of(y, 0);
  pairs.out[1] = half_of(y, 1);
  backend(y.device.type).launch(pairs);
}

const OpDef rotary_row{
    "rotary_embedding",
    "halves of each row rotated by position * base^(-2i / D)",
    {.infer = same_infer,
     .kernel = {{rotary_run}, {rotary_run}},
     .scratch = no_scratch,
     .cut =
         [](const OpCall& c, int operand) {
           return operand == 1 || operand == 2 ? cut_beside(*c.in[operand], *c.in[0]) : 0;
         },
     .work =
         [](const OpCall& c) {
           return Work{3 * static_cast<double>(c.out[0].numel()), operand_bytes(c)};
         },
     .vjp =
         [](VjpCall& v) {
           if (v.needs(0)) v.gin[0] = call(rotary_row, {v.gout[0], v.input(1), -v.input(2)});
         },
     .saves_inputs = 0b110,
     .apart = true}};

}  // namespace

Tensor rotary_embedding(const Tensor& x, const Tensor& positions, double base) {
  BRRR_CHECK(x.defined() && positions.defined(),
             "rotary_embedding: x or positions is undefined; assign it");
  BRRR_CHECK(std::isfinite(base) && base > 0,
             "rotary_embedding: base must be positive and finite, got {}", base);
  check_floating("rotary_embedding", *x.impl());
  BRRR_CHECK(x.device() == positions.device(),
             "rotary_embedding: operands live on {} and {}; move one with to(device)",
             name(x.device()), name(positions.device()));
  BRRR_CHECK(x.dim() >= 2 && x.size(-1) % 2 == 0,
             "rotary_embedding: takes [.., length, width] with an even width, got {}", describe(x));
  BRRR_CHECK(positions.dtype() == kInt64 && positions.sizes() == IntList{x.size(-2)},
             "rotary_embedding: positions are {}, but {} needs int64[{}], one for each row",
             describe(positions), describe(x), x.size(-2));
  const Tensor angle = angles(positions, {base, x.size(-1)}, compute_type(x.dtype()));
  const Tensor c = cos(angle), s = sin(angle);
  // Where x lies in memory as [.., T, heads, D], so does the result.
  if (!is_by_length(x)) return call(rotary_row, {x, c, s});
  return sole_view(
      call(rotary_row, {x.transpose(-3, -2), unsqueeze(c, 1), unsqueeze(s, 1)}).transpose(-3, -2));
}

}  // namespace brrr
