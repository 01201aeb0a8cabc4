// Attention's GPU kernels against the CPU's: results, tensors saved for backward, gradients.

#include <cmath>
#include <functional>

#include "brrr.h"
#include "tests/cuda_cases.h"

using namespace brrr;
using namespace brrr::test;

namespace {

struct Case {
  IntList batch;
  int64_t queries, keys, width, depth;
};

// Widths that need padding or not; lengths around the tiles of 64, 32 and 16; one token.
const Case kCases[] = {{{2}, 1, 1, 1, 1},         {{}, 5, 7, 3, 4},       {{2, 2}, 64, 64, 16, 16},
                       {{2}, 65, 63, 64, 64},     {{1}, 1, 130, 16, 16},  {{1}, 100, 150, 96, 128},
                       {{1, 2}, 130, 3, 128, 40}, {{1}, 129, 129, 24, 8}, {{1}, 70, 33, 72, 30}};

Tensor normal(IntList sizes, int64_t rows, int64_t cols, DType t) {
  sizes.push_back(rows);
  sizes.push_back(cols);
  return randn(sizes).to(t);
}

// The result and the gradients of q, k and v, computed on `device`.
Tensors attend(const Tensors& in, AttentionOptions o, const Tensor& g, Device device) {
  Tensors leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().to(device).set_requires_grad());
  if (o.mask.defined()) o.mask = o.mask.to(device);
  manual_seed(7);
  const Tensor out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], o);
  out.backward(g.to(device));
  Tensors all{out.detach()};
  for (const Tensor& t : leaves) all.push_back(t.grad());
  for (Tensor& t : all) t = t.to(kCPU);
  return all;
}

void check_close(const Tensors& a, const Tensors& b, double bound) {
  REQUIRE(a.size() == b.size());
  for (size_t k = 0; k < a.size(); ++k) {
    CAPTURE(k);
    REQUIRE(a[k].sizes() == b[k].sizes());
    REQUIRE(a[k].dtype() == b[k].dtype());
    const auto x = a[k].to(kFloat64).to_vector<double>(), y = b[k].to(kFloat64).to_vector<double>();
    double largest = 1, worst = 0;
    for (double v : y) largest = std::max(largest, std::fabs(v));
    for (size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, x[i] == y[i] ? 0 : std::fabs(x[i] - y[i]));
      if (std::isnan(x[i]) != std::isnan(y[i])) worst = kInf;
    }
    CHECK_MESSAGE(worst <= bound * largest, fmt::format("{} of {}", worst, largest));
  }
}

double bound_of(DType t) {
  return t == kFloat64 ? 1e-12 : t == kFloat32 ? 1e-5 : t == kFloat16 ? 4e-3 : 3e-2;
}

std::vector<AttentionOptions> options_for(const Case& s) {
  const IntList full{s.queries, s.keys};
  Tensor some = rand(full) < 0.6;
  some.select(0, 0).fill_(false);  // A query with every key masked.
  const Tensor bias = where(rand(full) < 0.8, randn(full), -kInf);
  return {{},
          {.causal = true},
          {.mask = some, .scale = 0.3},
          {.causal = true, .mask = bias},
          {.dropout = 0.3},
          {.causal = true, .mask = rand({1, s.keys}) < 0.7, .dropout = 0.5}};
}

}  // namespace

// Short tests run every case with a third of the options in float32 and fewer in 16-bit floats:
// each tile size that a kernel is compiled for takes seconds.
TEST_CASE("cuda attention: results and gradients are the CPU's") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kBFloat16, kFloat16}) {
    CAPTURE(static_cast<int>(t));
    int turn = t == kFloat16;
    for (const Case& s : kCases) {
      ++turn;
      CAPTURE(s.queries);
      CAPTURE(s.width);
      manual_seed(3);
      const Tensors in{normal(s.batch, s.queries, s.width, t), normal(s.batch, s.keys, s.width, t),
                       normal(s.batch, s.keys, s.depth, t)};
      const Tensor g = normal(s.batch, s.queries, s.depth, t);
      int which = 0;
      for (const AttentionOptions& o : options_for(s)) {
        ++which;
        CAPTURE(which);
        if ((turn + which) % (t == kFloat32 ? 7 : 13) && !long_tests()) continue;
        check_close(attend(in, o, g, kCUDA), attend(in, o, g, kCPU), bound_of(t));
      }
    }
  }
}

// At least 256 blocks of 128 rows; widths for which all or only some kernels have such blocks.
// Short tests run only the first case, causal with and without a mask.
TEST_CASE("cuda attention: where there are many blocks, each has 128 rows") {
  if (!have_device()) return;
  const Case cases[] = {
      {{128}, 135, 130, 40, 16}, {{2, 43}, 300, 290, 64, 64}, {{128}, 130, 200, 96, 72}};
  for (const Case& s : cases) {
    const DType t = s.width == 64 ? kFloat16 : kBFloat16;
    CAPTURE(s.width);
    manual_seed(6);
    const Tensors in{normal(s.batch, s.queries, s.width, t), normal(s.batch, s.keys, s.width, t),
                     normal(s.batch, s.keys, s.depth, t)};
    const Tensor g = normal(s.batch, s.queries, s.depth, t);
    for (const AttentionOptions& o : options_for(s)) {
      const bool chosen = s.width == 40 && o.causal && o.dropout == 0;
      if (o.dropout > 0 || !(chosen || long_tests())) continue;
      CAPTURE(o.causal);
      CAPTURE(o.mask.defined());
      check_close(attend(in, o, g, kCUDA), attend(in, o, g, kCPU), bound_of(t));
    }
  }
}

TEST_CASE("cuda attention: a negative scale, and one that is 0 in float32") {
  if (!have_device()) return;
  const Case s{{2}, 70, 90, 8, 8};
  for (DType t : {kFloat32, kBFloat16}) {
    manual_seed(8);
    const Tensors in{normal(s.batch, s.queries, s.width, t), normal(s.batch, s.keys, s.width, t),
                     normal(s.batch, s.keys, s.depth, t)};
    const Tensor g = normal(s.batch, s.queries, s.depth, t);
    for (const double scale : {-0.7, 1e-60}) {
      const AttentionOptions o{.causal = true, .scale = scale};
      check_close(attend(in, o, g, kCUDA), attend(in, o, g, kCPU), bound_of(t));
    }
  }
}

TEST_CASE("cuda attention: all of a query's keys may have mask values up to the largest float") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kBFloat16, kFloat16}) {
    for (double value : {-1e6, -1e9, -3.4028234663852886e38}) {
      CAPTURE(static_cast<int>(t));
      CAPTURE(value);
      manual_seed(3);
      Tensor mask = where(rand({20, 40}) < 0.5, 0.0, value);
      mask.select(0, 0).fill_(value);
      mask.select(0, 17).fill_(value);
      const Tensors in{normal({2}, 20, 16, t), normal({2}, 40, 16, t), normal({2}, 40, 16, t)};
      const Tensor g = normal({2}, 20, 16, t);
      for (const bool causal : {false, true}) {
        const AttentionOptions o{.causal = causal, .mask = mask};
        // Added to -1e6, a score keeps few bits, which depend on the order of its sum.
        const double bound = value == -1e6 ? 0.1 : bound_of(t);
        check_close(attend(in, o, g, kCUDA), attend(in, o, g, kCPU), bound);
      }
    }
  }
}

TEST_CASE("cuda attention: strided operands are read without a copy") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kBFloat16}) {
    CAPTURE(static_cast<int>(t));
    manual_seed(4);
    // Heads interleaved per token, as from a projection; one key head shared by all; misaligned
    // rows; columns that are not contiguous.
    const Tensor wide = randn({2, 40, 3, 16}).to(t), odd = randn({2, 3, 40, 17}).to(t);
    const std::function<Tensors(const Tensor&, const Tensor&)> layouts[] = {
        [](const Tensor& a, const Tensor&) {
          return Tensors{a.transpose(1, 2), a.transpose(1, 2), a.transpose(1, 2)};
        },
        [](const Tensor& a, const Tensor&) {
          const Tensor one = a.transpose(1, 2).slice(1, 0, 1);
          return Tensors{a.transpose(1, 2), one, one};
        },
        [](const Tensor&, const Tensor& b) {
          const Tensor x = b.slice(-1, 1, 17);
          return Tensors{x, x, x};
        },
        [](const Tensor&, const Tensor& b) {
          const Tensor x = b.transpose(2, 3).contiguous().transpose(2, 3);
          return Tensors{x, x, x};
        },
    };
    for (const auto& layout : layouts) {
      auto run = [&](Device d) {
        Tensors in = layout(wide.to(d), odd.to(d));
        for (Tensor& x : in) x = x.detach().set_requires_grad();
        const Tensor out = scaled_dot_product_attention(in[0], in[1], in[2], {.causal = true});
        sum(out * 2).backward();  // The incoming gradient is an expanded scalar.
        Tensors all{out.detach().to(kCPU)};
        for (const Tensor& x : in) all.push_back(x.grad().to(kCPU));
        return all;
      };
      check_close(run(kCUDA), run(kCPU), bound_of(t));
    }
  }
}

TEST_CASE("cuda attention: calls that no kernel serves run as their decomposition") {
  if (!have_device()) return;
  const Case cases[] = {{{2}, 9, 20, 8, 8}, {{2}, 9, 20, 136, 8}, {{2}, 9, 20, 8, 136}};
  for (DType t : {kFloat64, kFloat32}) {
    for (const Case& s : cases) {
      manual_seed(5);
      const Tensors in{normal(s.batch, s.queries, s.width, t), normal(s.batch, s.keys, s.width, t),
                       normal(s.batch, s.keys, s.depth, t)};
      const Tensor g = normal(s.batch, s.queries, s.depth, t);
      int which = 0;
      for (const AttentionOptions& o : options_for(s)) {
        if ((++which + s.width) % 3 && !long_tests()) continue;
        check_close(attend(in, o, g, kCUDA), attend(in, o, g, kCPU), bound_of(t));
      }
    }
  }
}

TEST_CASE("cuda attention: a dropout mask has the CPU's elements") {
  if (!have_device()) return;
  // Equal weights, and rows of the identity as values: the result is the mask / keys.
  const int64_t n = 67;
  for (DType t : {kFloat32, kBFloat16}) {
    const Tensors in{zeros({2, n, 64}).to(t), zeros({2, n, 64}).to(t),
                     eye(n).slice(1, 0, 64).expand({2, n, 64}).to(t)};
    const Tensor g = ones({2, n, 64}).to(t);
    const AttentionOptions o{.dropout = 0.5};
    const auto zero = [](const Tensor& x) { return (x == 0.0).to(kInt64).to_vector<int64_t>(); };
    const auto here = zero(attend(in, o, g, kCUDA)[0]), there = zero(attend(in, o, g, kCPU)[0]);
    CHECK(here == there);
  }
}

// Rows of a tile past the last query are zeros, whose product with an infinite key is NaN.
TEST_CASE("cuda attention: an infinite key whose weights are all 0 gets no gradient") {
  if (!have_device()) return;
  for (DType t : {kFloat32, kBFloat16}) {
    const Tensor q = (rand({5, 3}) + 0.5).to(t), k = rand({7, 3}).to(t), v = randn({7, 4}).to(t);
    k.select(0, 2).fill_(-kInf);
    for (const bool causal : {false, true}) {
      const Tensors got = attend({q, k, v}, {.causal = causal}, randn({5, 4}).to(t), kCUDA);
      for (const int of : {2, 3}) CHECK(all(got[of].select(0, 2) == 0.0).item<bool>());
    }
  }
}

TEST_CASE("cuda attention: no keys, no queries, no heads, no width") {
  if (!have_device()) return;
  const Case cases[] = {{{2}, 3, 0, 8, 8},
                        {{2}, 0, 3, 8, 8},
                        {{0}, 3, 3, 8, 8},
                        {{2}, 3, 4, 0, 8},
                        {{2}, 3, 4, 8, 0}};
  for (const Case& s : cases) {
    CAPTURE(s.queries);
    CAPTURE(s.keys);
    const DType t = kBFloat16;
    const Tensors in{normal(s.batch, s.queries, s.width, t), normal(s.batch, s.keys, s.width, t),
                     normal(s.batch, s.keys, s.depth, t)};
    const Tensor g = normal(s.batch, s.queries, s.depth, t);
    check_close(attend(in, {}, g, kCUDA), attend(in, {}, g, kCPU), 0.02);
  }
}
