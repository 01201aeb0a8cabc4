// Generated kernels give eager's bits: dtypes, layouts and shapes at the edges.
#include <doctest/doctest.h>

#include <limits>

#include "tests/fuzz_steps.h"
#include "tests/error_text.h"
#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;
using test::contains, test::kInf;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Tensors = std::vector<Tensor>;

// Runs `fn` eagerly and as one replay, on copies of the same inputs (it may write to them).
template <class F> void check_same(const F& fn, const Tensors& inputs) {
  const auto copies = [&] {
    Tensors list;
    for (const Tensor& t : inputs) {
      // Keeps the strides: a transposed view is cloned through its dense transpose.
      list.push_back(t.is_contiguous() ? t.clone() : t.transpose(0, 1).clone().transpose(0, 1));
    }
    return list;
  };
  const Tensors a = copies(), b = copies();
  const Tensors eager = fn(a);
  auto step =
      brrr::step([&] { return fn(b); }, {.require_graph = true, .build_at_first_call = true});
  const Tensors graph = step();
  CHECK(step.stats().replays == 1);
  CHECK(step.stats().fused_kernels > 0);
  REQUIRE(eager.size() == graph.size());
  const auto same = [](const Tensor& x, const Tensor& y) {
    CHECK(x.dtype() == y.dtype());
    CHECK(x.sizes() == y.sizes());
    CHECK(same_bits(x, y));
  };
  for (size_t k = 0; k < eager.size(); ++k) {
    CAPTURE(k);
    same(eager[k], graph[k]);
  }
  for (size_t k = 0; k < a.size(); ++k) {
    CAPTURE(k);
    same(a[k], b[k]);
  }
}

// 35 values (two vectors and a tail) at the edges of every dtype, and a transposed matrix of them.
Tensors edges(DType t) {
  const std::vector<double> v{
      0.0,     -0.0,    1.0,     -1.0,         0.5,          1.5,           2.5,
      -2.5,    255.0,   256.0,   300.0,        -3.0,         127.0,         32768.0,
      65504.0, 65520.0, 70000.0, 2147483647.0, 2147483648.0, -2147483648.0, 4294967296.0,
      9.2e18,  9.3e18,  -9.3e18, 1e-8,         5.9e-8,       1e-40,         3e38,
      1e300,   -1e300,  kInf,    -kInf,        kNan,         0.1,           1.00390625};
  const Tensor x = tensor(v).to(t);
  return {x, x.view({5, 7}).t()};
}

}  // namespace

TEST_CASE("codegen: every conversion, contiguous and strided") {
  test::TempCache cache;
  const auto all = [](const Tensors& in) {
    Tensors out;
    for (const Tensor& x : in) {
      for (int t = 0; t < kNumDTypes; ++t) {
        // Strided loads share the conversion code: short tests convert an eighth of them.
        const bool skip = (static_cast<int>(x.dtype()) + t) % (x.is_contiguous() ? 3 : 8);
        if (!skip || test::long_tests()) out.push_back(x.to(static_cast<DType>(t)).clone());
      }
    }
    return out;
  };
  for (int t = 0; t < kNumDTypes; ++t) check_same(all, edges(static_cast<DType>(t)));
}

TEST_CASE("codegen: results stored into tensors of other dtypes and layouts") {
  test::TempCache cache;
  Tensors inputs;
  for (int t = 0; t < kNumDTypes; ++t) {
    for (const Tensor& x : edges(static_cast<DType>(t))) inputs.push_back(x);
  }
  check_same(
      [](const Tensors& in) {
        const Tensor flat = in[0] * 0.75 - 3.0, matrix = in[1] * 0.75 - 3.0, wide = in[2] * 1.1;
        for (size_t k = 4; k < in.size(); k += 2) {
          in[k].copy_(k % 4 ? flat : wide);
          in[k + 1].copy_(matrix);
          in[k].slice(0, 1, 30, 3).fill_(2.7);
        }
        in[4].add_(in[6]).mul_(in[0]);
        in[6].add_(0.1).mul_(1.7);
        in[8].add_(in[10]).mul_(3);
        in[12].add_(250).mul_(7);
        return Tensors{flat > 0.0, (matrix < 0.0).to(kBFloat16) * 3.0};
      },
      inputs);
}

TEST_CASE("codegen: broadcasts in any dim, many dims, permuted operands") {
  test::TempCache cache;
  const Tensors inputs{
      randn({2, 3, 4, 5, 6}), randn({1, 3, 1, 5, 1}), randn({4, 1, 6}), randn({6, 5, 4, 3, 2}),
      randn({7, 5}).t(),      randn({5, 7}),          randn({3}),       randn({}),
      randn({33, 1}),         randn({1, 17})};
  check_same(
      [](const Tensors& in) {
        const Tensor a = in[0] * in[1] + in[2] - in[7];
        const Tensor p = in[3].permute({4, 3, 2, 1, 0});
        const Tensor v = in[6];
        return Tensors{a,
                       a + p,
                       (p * p).transpose(1, 3) + 1.0,
                       p.slice(4, 1, 6, 2) * a.slice(4, 0, 5, 2),
                       in[4] * in[5],
                       in[4].t() - in[5].t(),
                       exp(in[4]),
                       v * v.view({3, 1}),
                       v.view({3, 1}) - v.view({1, 3}) * v,
                       v.expand({4, 3}) + v,
                       in[8] * in[9],
                       in[8] + 1.0,
                       in[9].t() * 2.0,
                       in[7] * in[7],
                       in[8].view({33}) * in[8].t(),
                       a.select(2, 1) * in[1].squeeze(2)};
      },
      inputs);
}

TEST_CASE("codegen: many windows, many instructions, several outputs, register passing") {
  test::TempCache cache;
  Tensors inputs;
  for (int k = 0; k < 40; ++k) inputs.push_back(randn({19}));
  check_same(
      [](const Tensors& in) {
        Tensor sum = in[0], chain = in[1];
        Tensors out;
        for (const Tensor& t : in) sum = sum * 0.5 + t;
        for (int k = 0; k < 100; ++k) {
          chain = k % 9 ? chain * 1.01 + in[static_cast<size_t>(k % 40)] : sin(chain);
          if (k % 25 == 0) out.push_back(chain);
        }
        const Tensor h = zeros({19});
        for (int k = 0; k < 5; ++k) h.mul_(0.9).add_(in[static_cast<size_t>(k)]);
        h.slice(0, 3, 9).mul_(2.0);
        in[5].slice(0, 1, 19).add_(in[5].slice(0, 0, 18));
        in[6].copy_(in[7]);
        in[7].copy_(in[8] * in[6]);
        out.insert(out.end(), {sum, chain, h, in[5] + in[6]});
        return out;
      },
      inputs);
}

TEST_CASE("codegen: sizes around a vector, beyond a grain, and zero") {
  test::TempCache cache;
  Tensors inputs;
  for (int64_t n : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 100003}) {
    inputs.push_back(randn({n}));
    inputs.push_back(randn({3, n}).t());
  }
  inputs.push_back(randn({300, 301}));
  check_same(
      [](const Tensors& in) {
        Tensors out;
        for (const Tensor& t : in) {
          const Tensor y = t * 1.5 + 0.25;
          out.push_back(y);
          out.push_back(where(y > 0.0, y, t).to(kBFloat16));
          if (t.dim() == 2) out.push_back(y * t.slice(0, 0, 1));
        }
        return out;
      },
      inputs);
}

TEST_CASE("codegen: scalars of every kind with every dtype") {
  test::TempCache cache;
  Tensors inputs;
  for (int t = 0; t < kNumDTypes; ++t) inputs.push_back(edges(static_cast<DType>(t))[0]);
  check_same(
      [](const Tensors& in) {
        Tensors out;
        for (const Tensor& t : in) {
          const Tensor n = t.dtype() == kBool ? t.to(kUInt8) : t;  // Bool has no subtraction.
          const Tensors some{t + 3,
                             t * true,
                             n - 0.1,
                             t * kNan,
                             t / 3,
                             t > 1.5,
                             t == 1,
                             floor_div(t, -1),
                             floor_div(t, 0),
                             remainder(t, -3),
                             maximum(t, kNan),
                             t + INT64_MIN,
                             where(t > 0, t, 7),
                             -n,
                             pow(t, 2.0),
                             pow(t, 3),
                             clamp(t, -1, 2)};
          // Short tests take every fourth result per dtype, each result with several dtypes.
          for (size_t k = 0; k < some.size(); ++k) {
            const bool turn = (k + static_cast<size_t>(t.dtype())) % 4 == 0;
            if (turn || test::long_tests()) out.push_back(some[k]);
          }
        }
        return out;
      },
      inputs);
}

// A compiler may assume x + 1 > x and x * x >= 0 where signed overflow is undefined.
TEST_CASE("codegen: integers wrap around, also in the ops that use the result") {
  test::TempCache cache;
  for (const DType t : {kInt32, kInt64}) {
    const bool narrow = t == kInt32;
    const int64_t most = narrow ? INT32_MAX : INT64_MAX, root = narrow ? 46341 : 3037000500;
    check_same(
        [](const Tensors& in) {
          const Tensor& x = in[0];
          Tensors out;
          for (const Tensor& y : {-x, x + 1, x - 1, x * -1, square(x), 0 - x}) {
            for (const Tensor& z : {y, y >= 1, y<0, y> x, y == x, sign(y), abs(y), relu(y),
                                    maximum(y, x), floor_div(y, 2), remainder(y, 3)})
              out.push_back(z);
          }
          return out;
        },
        {tensor(std::vector<int64_t>{-most - 1, most, -most, root, -root, -1, 0, 1, -7}).to(t)});
  }
}

TEST_CASE("codegen: scalars that change between calls are read from the control block") {
  test::TempCache cache;
  double k = 0.5;
  const Tensor x = randn({37}), h = randn({37}).to(kBFloat16), n = randint(-5, 5, {37});
  auto fn = [&] { return Tensors{x * k + 1.0, h * k, n * k, (x.to(kFloat64) + k)}; };
  auto step = brrr::step(fn, {.build_at_first_call = true});
  for (int call = 0; call < 12; ++call) {
    k = 0.3 * call;
    const Tensors eager = fn(), graph = step();
    for (size_t i = 0; i < eager.size(); ++i) {
      CHECK(same_bits(eager[i], graph[i]));
    }
  }
  CHECK(step.stats().recordings <= 5);
}

// A bounded function's result is in [-1, 1], so a sine or cosine of it has a cheaper form, which
// must not be used after another dtype, an in-place write or an op in between ends the bound.
TEST_CASE("codegen: sines and cosines of bounded results") {
  test::TempCache cache;
  const auto chain = [](const Tensors& in) {
    const Tensor x = in[0], c = x.cos();
    const Tensor doubled = x.tanh() * 3.0;
    x.copy_(x.erf());
    const Tensor once = x.sin();
    x.mul_(40.0);
    return Tensors{c.cos(),
                   c.sin(),
                   x.sigmoid().cos().sin(),
                   doubled.cos(),
                   once,
                   x.cos(),
                   c.to(kBFloat16).cos(),
                   c.to(kFloat16).to(kFloat64).cos().to(kFloat32).cos(),
                   c.to(kInt32).to(kUInt8).cos(),
                   x.tanh().to(kUInt8).cos()};  // -1 wraps around to 255
  };
  for (DType t : {kFloat32, kBFloat16, kFloat64, kFloat16}) {
    CAPTURE(static_cast<int>(t));
    if (t != kFloat32 && t != kBFloat16 && !test::long_tests()) continue;
    check_same(chain, {edges(t)[0]});
    if (t != kFloat32 && !test::long_tests()) continue;
    check_same(chain, {(randn({3000}) * 5.0).to(t)});
    if (test::long_tests()) check_same(chain, {edges(t)[1]});
  }
}

// Kernels that move more than the caches hold use streaming stores for whole, aligned cache lines.
TEST_CASE("codegen: streaming kernels, aligned and not") {
  test::TempCache cache;
  const int64_t rows = 1400, columns = 4096, n = rows * columns + 5;
  const Tensors flat = {randn({n}), randn({n}), zeros({n + 1})};
  check_same(
      [](const Tensors& in) {
        const Tensor y = in[0].cos().cos() * in[1];
        in[2].narrow(0, 1, in[0].numel()).copy_((y + in[1]).erf());  // 4 bytes into a cache line
        return Tensors{y, y > 0.5};
      },
      flat);
  const Tensors matrices = {randn({rows, columns}), randn({rows, columns}), randn({columns}),
                            randn({2 * rows, columns + 1}), randn({1, columns + 1})};
  check_same(
      [](const Tensors& in) {
        in[0].add_(1.0);  // read and written: no streaming stores
        return Tensors{gelu(in[0] * in[2] + in[2]) + in[1], in[3] * in[4]};
      },
      matrices);
}

TEST_CASE("codegen: source() is the text of a step's kernels, each after the names of its ops") {
  const test::TempCache cache;
  struct Net : models::Module {
    models::Linear fc{8, 8};
    Net() { register_module("fc", fc); }
    Tensor forward(const Tensor& x) override { return gelu(fc(x)) * 2.0; }
  } net;
  auto step = brrr::step([&](const Tensor& x) { return net(x).exp(); });
  CHECK_THROWS_WITH_AS(step.source(), doctest::Contains("call the step at least once"), Error);
  for (const int64_t rows : {2, 3}) {  // Two entries: source() is that of the last.
    const Tensor x = randn({rows, 8});
    step(x);
    CHECK_THROWS_WITH_AS(step.source(), doctest::Contains("an entry's second call"), Error);
    step(x);
    const std::string text = step.source();
    CHECK_MESSAGE(contains(text, "\n// fc: add_ gelu mul exp:\nextern \"C\" void brrr_k0("), text);
    CHECK_MESSAGE(contains(text, "normal_cdf("), text);
  }
}
