// Tensors from the random stream. Element i is a pure function of (seed, draw, i), whatever the
// threads, the mode or the device.
#include <algorithm>

#include "core/backend.h"
#include "core/call.h"
#include "ops/vocabulary/convert.h"
#include "ops/kinds/creation.h"
#include "ops/rows/dropout.h"
#include "ops/rows/factory_kernels.h"
#include "ops/factory_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/vocabulary/vec.h"
#include "ops/vocabulary/vec_math.h"
#include "ops/vocabulary/vec_random.h"

namespace brrr {

namespace {

constexpr int64_t kTile = 256;  // Elements made at a time; a multiple of 16.

// The words that every random row begins with.
struct Draw {
  uint64_t seed, number;
  explicit Draw(const OpCall& c)
      : seed(static_cast<uint64_t>(c.attrs.v[0])), number(static_cast<uint64_t>(c.attrs.v[1])) {}
  vx::u32 words(int64_t i) const { return vx::philox16(static_cast<uint64_t>(i), seed, number); }
};
constexpr int kDrawWords = 2;

template <class F> void for_tiles(int64_t n, const F& f) {
  parallel_for((n + kTile - 1) / kTile, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) f(t * kTile, std::min(kTile, n - t * kTile));
  });
}

// `make(i)` gives elements i .. i + 15 as float32; other dtypes are conversions of them.
template <class F> void fill_floats(const TensorImpl& o, const F& make) {
  for_tiles(o.numel, [&](int64_t begin, int64_t n) {
    alignas(64) float tile[kTile];
    float* to = o.dtype == kFloat32 ? reinterpret_cast<float*>(o.data()) + begin : tile;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) vx::store(to + i, make(begin + i));
    if (i < n) vx::store_n(to + i, make(begin + i), static_cast<int>(n - i));
    if (to != tile) return;
    char* out = o.data() + begin * static_cast<int64_t>(itemsize(o.dtype));
    store_tile(o.dtype, out, 1, kFloat32, tile, n);
  });
}

// Only as many bits as the dtype holds: rounding 0.99999 to bfloat16 would give 1.
void run_rand(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const Draw draw(c);
  const int digits = o.dtype == kBFloat16 ? 8 : o.dtype == kFloat16 ? 11 : 24;
  const unsigned keep = ~0u << (32 - digits);
  fill_floats(o, [&](int64_t i) { return vx::uniform01(draw.words(i) & keep); });
}

void run_randn(OpCall& c) {
  const Draw draw(c);
  fill_floats(*c.out[0].impl(), [&](int64_t i) {
    return vx::normal16(static_cast<uint64_t>(i), draw.seed, draw.number);
  });
}

// The high part of word * range (Lemire, "Fast random integer generation in an interval", 2019,
// without its rejection): a value's probability is off by at most one part in 2^32 / range, which
// keeps every element's cost and counter fixed. Beyond 32 bits element i takes words 2i, 2i + 1.
void run_randint(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const Draw draw(c);
  auto* out = reinterpret_cast<uint64_t*>(o.data());
  const auto low = static_cast<uint64_t>(c.attrs.v[kDrawWords]);
  const uint64_t range = static_cast<uint64_t>(c.attrs.v[kDrawWords + 1]) - low;
  if (range <= uint64_t{1} << 32) {
    for_tiles(o.numel, [&](int64_t begin, int64_t n) {
      for (int64_t i = 0; i < n; i += 16) {
        const vx::u32 w = draw.words(begin + i);
        const int lanes = static_cast<int>(std::min<int64_t>(16, n - i));
        for (int k = 0; k < lanes; ++k) out[begin + i + k] = low + (w[k] * range >> 32);
      }
    });
    return;
  }
  __extension__ using wide = unsigned __int128;
  for_tiles(o.numel, [&](int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
      const vx::u32 w = draw.words(2 * (begin + i));
      const int lanes = static_cast<int>(std::min<int64_t>(8, n - i));
      for (int k = 0; k < lanes; ++k) {
        const uint64_t word = uint64_t{w[2 * k + 1]} << 32 | w[2 * k];
        out[begin + i + k] = low + static_cast<uint64_t>(wide{word} * range >> 64);
      }
    }
  });
}

// Sorted by a random word; equal words (one pair in 2^32) keep their order. Word and number share
// 64 bits, so the result's own memory is all that the sort needs.
void run_randperm(OpCall& c) {
  const TensorImpl& o = *c.out[0].impl();
  const Draw draw(c);
  auto* keys = reinterpret_cast<uint64_t*>(o.data());
  for_tiles(o.numel, [&](int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
      const vx::u32 w = draw.words(begin + i);
      const int lanes = static_cast<int>(std::min<int64_t>(16, n - i));
      for (int k = 0; k < lanes; ++k) {
        keys[begin + i + k] = uint64_t{w[k]} << 32 | static_cast<uint64_t>(begin + i + k);
      }
    }
  });
  std::sort(keys, keys + o.numel);
  for (int64_t i = 0; i < o.numel; ++i) keys[i] &= 0xffffffffu;
}

void fill_dropout_mask(const TensorImpl& o, const DropoutDraw& draw) {
  if (o.dtype != kFloat64) return fill_floats(o, [&](int64_t i) { return draw.mask(i); });
  auto* out = reinterpret_cast<double*>(o.data());
  for_tiles(o.numel, [&](int64_t begin, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
      vx::store_n(out + begin + i, draw.mask64(begin + i),
                  static_cast<int>(std::min<int64_t>(16, n - i)));
    }
  });
}

void run_dropout_mask(OpCall& c) {
  fill_dropout_mask(*c.out[0].impl(), DropoutDraw(c.attrs.v, c.attrs.d(kDrawWords)));
}

void run_draw_key(OpCall& c) {
  std::copy_n(c.attrs.v, kDrawWords, reinterpret_cast<int64_t*>(c.out[0].impl()->data()));
}

// Attributes: word 0 the probability, then the sizes.
void dropout_mask_at_infer(OpCall& c) {
  const TensorImpl& key = *c.in[0];
  BRRR_CHECK(key.dtype == kInt64 && key.ndim == 1 && key.sizes[0] == kDrawWords,
             "dropout_mask_at: takes a key as draw_key() gives it, got {}", describe(&key));
  OutMeta& m = c.meta[0];
  m.dtype = static_cast<DType>(c.attrs.dtype);
  m.device = key.device;
  for (int i = 1; i < c.attrs.n; ++i) m.sizes.push_back(c.attrs.v[i]);
}

void run_dropout_mask_at(OpCall& c) {
  const TensorImpl& key = *c.in[0];
  const auto* words = reinterpret_cast<const int64_t*>(key.data());
  const int64_t pair[kDrawWords] = {words[0], words[key.strides[0]]};
  fill_dropout_mask(*c.out[0].impl(), DropoutDraw(pair, c.attrs.d(0)));
}

const OpDef rand_row{"rand",
                     "uniform in [0, 1)",
                     {.kind = OpKind::Random,
                      .infer = creation_infer<kDrawWords>,
                      .kernel = {{run_rand}, {rand_cuda}}}};
const OpDef randn_row{"randn",
                      "standard normal",
                      {.kind = OpKind::Random,
                       .infer = creation_infer<kDrawWords>,
                       .kernel = {{run_randn}, {randn_cuda}}}};
const OpDef randint_row{"randint",
                        "integers in [low, high)",
                        {.kind = OpKind::Random,
                         .infer = creation_infer<kDrawWords + 2>,
                         .kernel = {{run_randint}, {randint_cuda}}}};
const OpDef randperm_row{"randperm",
                         "a random permutation",
                         {.kind = OpKind::Random,
                          .infer = creation_infer<kDrawWords>,
                          .kernel = {{run_randperm}, {randperm_cuda}}}};
const OpDef dropout_row{"dropout_mask",
                        "0 with probability p, else 1 / (1 - p)",
                        {.kind = OpKind::Random,
                         .infer = creation_infer<kDrawWords + 1>,
                         .kernel = {{run_dropout_mask}, {dropout_mask_cuda}}}};
const OpDef key_row{"draw_key",
                    "seed and number of a draw",
                    {.kind = OpKind::Random,
                     .infer = creation_infer<kDrawWords>,
                     .kernel = {{run_draw_key}, {draw_key_cuda}}}};
const OpDef dropout_at_row{
    "dropout_mask_at",
    "the dropout mask of a draw's key",
    {.infer = dropout_mask_at_infer, .kernel = {{run_dropout_mask_at}, {dropout_mask_at_cuda}}}};

void check_floating(const char* op, const Tensor& t) {
  BRRR_CHECK(t.defined(), "{}: the tensor is undefined; assign one first", op);
  BRRR_CHECK(is_floating(t.dtype()), "{}: needs a floating tensor, got {}; convert with to(dtype)",
             op, describe(t.impl()));
}
void check_probability(const char* op, double p) {
  BRRR_CHECK(p >= 0 && p <= 1, "{}: p is a probability in [0, 1], got {}", op, p);
}

}  // namespace

Tensor rand(const IntList& sizes, Device device) {
  return CreationCall(rand_row, sizes, kFloat32, device).push_draw().run();
}
Tensor randn(const IntList& sizes, Device device) {
  return CreationCall(randn_row, sizes, kFloat32, device).push_draw().run();
}
Tensor rand_like(const Tensor& t) {
  check_floating("rand_like", t);
  return CreationCall(rand_row, t.sizes(), t.dtype(), t.device()).push_draw().run();
}
Tensor randn_like(const Tensor& t) {
  check_floating("randn_like", t);
  return CreationCall(randn_row, t.sizes(), t.dtype(), t.device()).push_draw().run();
}

Tensor randint(int64_t low, int64_t high, const IntList& sizes, Device device) {
  BRRR_CHECK(low < high, "randint: the range [{}, {}) is empty; low must be below high", low, high);
  CreationCall c(randint_row, sizes, kInt64, device);
  return c.push_draw().push(low).push(high).run();
}

Tensor randperm(int64_t n, Device device) {
  BRRR_CHECK(n >= 0 && n <= int64_t{1} << 32, "randperm: n must be in [0, 2^32], got {}", n);
  return CreationCall(randperm_row, {n}, kInt64, device).push_draw().run();
}

Tensor dropout_mask(const Tensor& like, double p) {
  check_floating("dropout_mask", like);
  check_probability("dropout_mask", p);
  CreationCall c(dropout_row, like.sizes(), like.dtype(), like.device());
  return c.push_draw().push(p).run();
}

Tensor draw_key(Device device) {
  return CreationCall(key_row, {kDrawWords}, kInt64, device).push_draw().run();
}

Tensor dropout_mask_at(const Tensor& key, double p, const IntList& sizes, DType dtype) {
  BRRR_CHECK(key.defined(), "dropout_mask_at: the key is undefined; make one with draw_key()");
  BRRR_CHECK(is_floating(dtype), "dropout_mask_at: gives floating dtypes, not {}", name(dtype));
  check_probability("dropout_mask_at", p);
  return call(dropout_at_row, {key}, dtype, p, sizes);
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check_floating("dropout", x);
  check_probability("dropout", p);
  if (!training || p == 0) return x;
  return mul(x, dropout_mask(x, p));
}

}  // namespace brrr
