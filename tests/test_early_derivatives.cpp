// Derivatives computed ahead, in the kernels of their functions: same bits, fewer polynomials.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <cmath>
#include <functional>
#include <limits>

#include "ops/kinds/pointwise.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Function = std::function<std::vector<Tensor>(const Tensor&)>;

// Compares three calls in both modes on the same input; returns explain().
std::string compare(const Function& fn, const Tensor& x, const StepOptions& given = {}) {
  StepOptions options = given;
  options.require_graph = true;
  auto graph = step(fn, options);
  for (int call = 0; call < 3; ++call) {
    const std::vector<Tensor> expected = fn(x), got = graph(x);
    REQUIRE(got.size() == expected.size());
    for (size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      CHECK(same_bits(got[k], expected[k]));
    }
  }
  return graph.explain();
}

bool is_ahead(const std::string& summary) {
  return summary.find("computed in forward") != std::string::npos;
}

// Two layers with an activation between them, and the gradients of all parameters.
struct Layers {
  Tensor w, b, v;
  explicit Layers(DType t = kFloat32)
      : w(randn({48, 64}, t)), b(randn({64}, t)), v(randn({64, 32}, t)) {
    for (const Tensor* p : {&w, &b, &v}) p->set_requires_grad();
  }
  // As in Linear: the bias is added in place to the product.
  Tensor hidden(const Tensor& x) const {
    const Tensor h = matmul(x, w);
    h.add_(b);
    return h;
  }
  template <class F> Function with(const F& activation) const {
    return [=, this](const Tensor& x) {
      const Tensor y = matmul(activation(hidden(x)), v);
      std::vector<Tensor> out = grad({mean(y * y)}, {w, b, v});
      out.push_back(y.detach());
      return out;
    };
  }
};

// A row flagged as a gradient row, so that tests over the library's rows skip it.
template <class F, class G>
const PointwiseOp& row_of(const char* name, const PointwiseTraits& traits, F f, G gradient) {
  auto* const row = new PointwiseOp(name, "a test's own", traits, f, gradient);  // Never freed.
  row->gradient_row = true;
  return *row;
}

}  // namespace

TEST_CASE("ahead: gelu's derivative is computed with gelu, to eager's bits") {
  manual_seed(31);
  const test::TempCache cache;
  const Layers layers;
  const Tensor x = randn({40, 48}) * 3.0;
  for (const char* approximate : {"none", "tanh"}) {
    const Function fn = layers.with([=](const Tensor& t) { return gelu(t, approximate); });
    CHECK(is_ahead(compare(fn, x)));
    StepOptions kept;
    kept.rematerialise = false;
    CHECK(!is_ahead(compare(fn, x, kept)));
    StepOptions parts;
    parts.part_bytes = 1 << 12;
    compare(fn, x, parts);
  }
}

TEST_CASE("ahead: a row defined by the user, with a scalar, and float64") {
  manual_seed(32);
  const test::TempCache cache;
  const Layers layers, wide(kFloat64);
  const PointwiseOp& row = row_of(
      "test_swish", {}, [](auto x, auto a) { return x * m::sigmoid(x * a); },
      [](auto x, auto a, auto, auto g) {
        auto s = m::sigmoid(x * a);
        return g * (s + x * a * s * (1.0 - s));
      });
  const auto swish = [&](const Tensor& t) { return call(row, t, 1.702); };
  CHECK(is_ahead(compare(layers.with(swish), randn({40, 48}))));
  CHECK(is_ahead(compare(wide.with(swish), randn({40, 48}, kFloat64))));
  CHECK(is_ahead(
      compare(wide.with([](const Tensor& t) { return gelu(t); }), randn({40, 48}, kFloat64))));
}

TEST_CASE("ahead: infinities, NaN, zeros and denormals keep their bits") {
  manual_seed(33);
  const test::TempCache cache;
  const Tensor v = randn({64, 32}), special = randn({8, 64});
  v.set_requires_grad();
  constexpr float inf = std::numeric_limits<float>::infinity();
  const float values[] = {inf, -inf, std::nanf(""), 0.0f, -0.0f, 1e-42f, -1e-42f, 88.0f, -5.5f};
  for (int k = 0; k < 9; ++k) special.select(0, k % 8).select(0, k).fill_(values[k]);
  special.set_requires_grad();
  const Tensor w = randn({48, 64});
  const Function fn = [&](const Tensor& x) {
    const Tensor h = matmul(x, w);
    h.add_(special);  // Added to zeros: keeps every value but -0.
    const Tensor y = matmul(gelu(h), v);
    return std::vector<Tensor>{grad({sum(y)}, {special})[0], y.detach()};
  };
  CHECK(is_ahead(compare(fn, zeros({8, 48}))));
}

TEST_CASE("ahead: an operand that is needed anyway, or is rounded, is kept") {
  manual_seed(34);
  const test::TempCache cache;
  const Tensor x = randn({40, 48});
  const Layers layers, half(kBFloat16);
  const auto activation = [](const Tensor& t) { return gelu(t); };
  CHECK(!is_ahead(compare(half.with(activation), x.to(kBFloat16))));
  // The operand is also a result of the step, or an operand of another gradient.
  const Function lasting = [&](const Tensor& in) {
    const Tensor h = layers.hidden(in), y = matmul(gelu(h), layers.v);
    std::vector<Tensor> out = grad({mean(y * y)}, {layers.w, layers.b, layers.v});
    out.push_back(h.detach());
    return out;
  };
  CHECK(!is_ahead(compare(lasting, x)));
  const Function again = [&](const Tensor& in) {
    const Tensor h = layers.hidden(in), y = matmul(gelu(h) * sin(h), layers.v);
    return grad({mean(y * y)}, {layers.w, layers.b, layers.v});
  };
  CHECK(!is_ahead(compare(again, x)));
  // The operand is smaller than the derivative.
  const Function expanded = [&](const Tensor& in) {
    const Tensor h = sum(matmul(in, layers.w) + layers.b, {1}, true).expand({40, 64});
    const Tensor y = matmul(gelu(h), layers.v);
    return grad({mean(y * y)}, {layers.w, layers.b, layers.v});
  };
  CHECK(!is_ahead(compare(expanded, x)));
  // Forward only: without a gradient no derivative is computed.
  const Function forward = [&](const Tensor& in) {
    const NoGradGuard guard;
    return std::vector<Tensor>{matmul(gelu(matmul(in, layers.w) + layers.b), layers.v)};
  };
  CHECK(!is_ahead(compare(forward, x)));
}

TEST_CASE("ahead: an operand written in place before the function is read as written") {
  manual_seed(35);
  const test::TempCache cache;
  const Layers layers;
  const Function fn = [&](const Tensor& in) {
    const Tensor h = layers.hidden(in);
    h.mul_(0.5);
    const Tensor y = matmul(gelu(h), layers.v);
    return grad({mean(y * y)}, {layers.w, layers.b, layers.v});
  };
  CHECK(is_ahead(compare(fn, randn({40, 48}))));
}

TEST_CASE("ahead: not where the arithmetic's dtype is not the operand's, or follows from g") {
  manual_seed(36);
  const test::TempCache cache;
  const PointwiseOp& wide = row_of(
      "test_wide", {.wide = true}, [](auto x) { return m::sin(x); },
      [](auto x, auto, auto g) { return g * m::cos(x); });
  const PointwiseOp& apart = row_of(
      "test_condition", {.condition = 2}, [](auto x, auto c) { return x * m::sin(c); },
      [](auto, auto c, auto, auto g) { return g * m::sin(c); });
  const Layers layers, doubles(kFloat64);
  CHECK(!is_ahead(
      compare(layers.with([&](const Tensor& t) { return call(wide, t); }), randn({40, 48}))));
  CHECK(!is_ahead(compare(doubles.with([&](const Tensor& t) { return call(apart, t, t); }),
                          randn({40, 48}, kFloat64))));
}

TEST_CASE("ahead: not done where it takes more memory, or moves more bytes") {
  manual_seed(37);
  const test::TempCache cache;
  const Tensor w = randn({256, 256}), b = randn({256}), x = randn({512, 256});
  w.set_requires_grad(), b.set_requires_grad();
  const auto arena = [&](bool in_place, bool rematerialise) {
    StepOptions options;
    options.rematerialise = rematerialise;
    auto s = step(
        [&](const Tensor& in) {
          Tensor h = matmul(in, w);
          in_place ? h.add_(b) : h = h + b;
          const Tensor y = sum(gelu(h).view({4, 128, 256}), {1});
          return grad({sum(y * y)}, {w, b});
        },
        options);
    for (int call = 0; call < 3; ++call) s(x);
    return s.stats().arena_bytes;
  };
  for (const bool in_place : {false, true}) CHECK(arena(in_place, true) <= arena(in_place, false));
  // x is recomputed from a product that is kept: there is no store of x that the derivative's store
  // could replace.
  const Layers layers;
  const Function recomputed = [&](const Tensor& in) {
    const Tensor y = matmul(gelu(matmul(in, layers.w) + layers.b), layers.v);
    return grad({mean(y * y)}, {layers.w, layers.b, layers.v});
  };
  CHECK(!is_ahead(compare(recomputed, randn({40, 48}))));
}
