// Tensors from the random stream. Element i is a pure function of (seed, draw, i), independent of
// threads, mode and device.
#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/kinds/composite.h"
#include "ops/kinds/pointwise.h"
#include "ops/library_ops.h"
#include "ops/rows/dropout.h"

namespace brrr {

namespace {

constexpr PointwiseTraits kPlain{};

const PointwiseOp rand_row{"rand", "uniform in [0, 1)", kPlain, Integers<0b1110, kNumber>{},
                           [](auto scale, auto shift, auto seed, auto number, auto i) {
                             return m::like(scale, m::draw(seed, number, i) >> shift) * scale;
                           }};

const PointwiseOp randn_row{"randn", "standard normal", kPlain, Integers<0b110, kNumber>{},
                            [](auto scale, auto seed, auto number, auto i) {
                              return m::draw_normal(scale, seed, number, i) * scale;
                            }};

const NumberOp randint_row{"randint", "integers in [low, high)", kPlain,
                           Integers<0b1110, kNumber>{},
                           [](auto low, auto range, auto seed, auto number, auto i) {
                             return low + m::like(low, m::draw_below(range, seed, number, i));
                           }};

const NumberOp key_row{
    "draw_key", "seed and number of a draw", kPlain, Integers<0, kNumber>{},
    [](auto seed, auto number, auto i) { return m::where(i == 0, seed, number); }};

const PointwiseOp mask_row{"dropout_mask", "0 with probability p, else 1 / (1 - p)", kPlain,
                           Integers<0b1110, kNumber>{},
                           [](auto kept, auto limit, auto seed, auto number, auto i) {
                             return m::where(m::draw_keeps(limit, seed, number, i), kept, 0.0);
                           }};

// The gradient regenerates the mask, so that it is never stored.
const PointwiseOp dropout_row{
    "dropout",
    "x times a dropout mask",
    kPlain,
    Integers<0b11100, kNumber>{},
    [](auto x, auto kept, auto limit, auto seed, auto number, auto i) {
      return x * m::where(m::draw_keeps(limit, seed, number, i), kept, 0.0);
    },
    [](auto, auto kept, auto limit, auto seed, auto number, auto, auto g, auto i) {
      return g * m::where(m::draw_keeps(limit, seed, number, i), kept, 0.0);
    }};

void check_floating(const char* op, const Tensor& t) { check_floating(op, *defined(op, t).impl()); }
void check_probability(const char* op, double p) {
  BRRR_CHECK(p >= 0 && p <= 1, "{}: p is a probability in [0, 1], got {}", op, p);
}

// The operands of mask_row, except the draw.
PointwiseCall& mask(PointwiseCall& c, double p, const IntList& sizes, DType dtype, Device device) {
  const DropoutRate rate(p);
  return c.make(sizes, dtype, device).add(rate.kept).add(rate.limit);
}

}  // namespace

// Draws only as many bits as the dtype's mantissa holds: 0.99999 rounded to bfloat16 would be 1.
Tensor rand(const IntList& sizes, DType dtype, Device device) {
  check_gives_floating("rand", dtype);
  const int digits = dtype == kBFloat16 ? 8 : dtype == kFloat16 ? 11 : 24;
  PointwiseCall c(rand_row);
  return c.make(sizes, dtype, device).add(std::ldexp(1.0, -digits)).add(32 - digits).draw().run();
}
Tensor rand(const IntList& sizes, Device device) { return rand(sizes, kFloat32, device); }
Tensor randn(const IntList& sizes, DType dtype, Device device) {
  check_gives_floating("randn", dtype);
  return PointwiseCall(randn_row).make(sizes, dtype, device).add(1.0).draw().run();
}
Tensor randn(const IntList& sizes, Device device) { return randn(sizes, kFloat32, device); }
Tensor rand_like(const Tensor& t) {
  check_floating("rand_like", t);
  return rand(t.sizes(), t.dtype(), t.device());
}
Tensor randn_like(const Tensor& t) {
  check_floating("randn_like", t);
  return randn(t.sizes(), t.dtype(), t.device());
}

Tensor randint(int64_t low, int64_t high, const IntList& sizes, Device device) {
  BRRR_CHECK(low < high, "randint: the range [{}, {}) is empty; low must be below high", low, high);
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  PointwiseCall c(randint_row);
  return c.make(sizes, kInt64, device).add(low).add(static_cast<int64_t>(range)).draw().run();
}

// A stable argsort of random words: equal ones (one pair in 2^32) keep their order.
Tensor randperm(int64_t n, Device device) {
  BRRR_CHECK(n >= 0 && n <= int64_t{1} << 32, "randperm: n must be in [0, 2^32], got {}", n);
  PointwiseCall c(randint_row);
  c.make({n}, kInt32, device).add(INT32_MIN).add(int64_t{1} << 32);
  return argsort(c.draw().run());
}

Tensor dropout_mask(const Tensor& like, double p) {
  check_floating("dropout_mask", like);
  check_probability("dropout_mask", p);
  PointwiseCall c(mask_row);
  return mask(c, p, like.sizes(), like.dtype(), like.device()).draw().run();
}

Tensor draw_key(Device device) {
  return PointwiseCall(key_row).make({2}, kInt64, device).draw().run();
}

Tensor dropout_mask_at(const Tensor& key, double p, const IntList& sizes, DType dtype) {
  BRRR_CHECK(key.defined(), "dropout_mask_at: the key is undefined; make one with draw_key()");
  check_gives_floating("dropout_mask_at", dtype);
  check_probability("dropout_mask_at", p);
  BRRR_CHECK(key.dtype() == kInt64 && key.sizes() == IntList{2},
             "dropout_mask_at: takes a key as draw_key() gives it, got {}", describe(key));
  numel_of(sizes, "dropout_mask_at");  // Throws if there are too many elements.
  PointwiseCall c(mask_row);
  return mask(c, p, sizes, dtype, key.device())
      .add(key.select(0, 0))  // The temporary outlives run().
      .add(key.select(0, 1))
      .run();
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check_floating("dropout", x);
  check_probability("dropout", p);
  if (!training || p == 0) return x;
  const DropoutRate rate(p);
  return PointwiseCall(dropout_row).add(x).add(rate.kept).add(rate.limit).draw().run();
}

}  // namespace brrr
