// Cat elision: gradients of q, k and v are written directly into the gradient of the tensor that
// they are slices of, as are those of halves; norms into the list whose norm is the total.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "brrr.h"
#include "tests/kernels.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Tensors = std::vector<Tensor>;
using test::kernels;

constexpr int64_t kHeads = 4;

// A slice of [batch, length, 3 width] as heads.
Tensor heads(const Tensor& all, int64_t which) {
  const int64_t width = all.size(2) / 3;
  return all.narrow(2, which * width, width)
      .reshape({all.size(0), all.size(1), kHeads, width / kHeads})
      .transpose(1, 2);
}

// The gradient of self-attention from its projection, after `change` has modified q, k and v.
template <class F> Tensors gradient(const Tensor& x, const F& change) {
  Tensor all = (x * 1.5).detach().set_requires_grad();
  Tensor q = heads(all, 0), k = heads(all, 1), v = heads(all, 2);
  change(q, k, v);
  const Tensor y = scaled_dot_product_attention(q, k, v, {.causal = true});
  y.backward(y.detach() + 1.0);
  return {all.grad() * 2.0};
}

}  // namespace

TEST_CASE("cat elision: attention's gradients need no kernel that concatenates them" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  manual_seed(1);
  for (const IntList& size : {IntList{3, 20, 48}, {1, 7, 12}, {2, 64, 384}}) {
    CAPTURE(to_string(size));
    const Tensor x = randn(size);
    const auto kept = [](auto&, auto&, auto&) {};
    const auto apart = [](Tensor&, Tensor& k, Tensor&) { k = k * 2.0; };
    // Scaling, both directions of attention, the gradient's kernels.
    const uint64_t joined = kernels([&] { return gradient(x, kept); });
    // k is scaled, so another kernel computes its gradient: all three are copied.
    CHECK(kernels([&] { return gradient(x, apart); }) > joined + 1);
    const Tensor half = x.to(kBFloat16);
    kernels([&] { return gradient(half, kept); });
    const Tensor twice = x.to(kFloat64);
    CHECK(kernels([&] { return gradient(twice, kept); }) == joined);
  }
}

TEST_CASE("cat elision: a leaf keeps its gradient, read before the next one replaces it" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  for (const double budget : {0.0, 0.5}) {
    std::vector<float> seen[2];
    for (const Mode mode : {Mode::Eager, Mode::Graph}) {
      manual_seed(3);
      Tensor x = randn({4, 32, 48}).set_requires_grad();
      auto step = brrr::step(
          [&] {
            const Tensor old = x.grad().defined() ? x.grad().sum() : full({}, 0.0);
            x.set_grad({});
            const Tensor y = scaled_dot_product_attention(heads(x, 0), heads(x, 1), heads(x, 2));
            (y * y).sum().backward();
            const NoGradGuard guard;
            x.sub_(x.grad() * 0.01);
            return old;
          },
          {.mode = mode, .memory_budget = budget, .part_bytes = 4096});
      std::vector<float>& all = seen[mode == Mode::Graph];
      for (int call = 0; call < 4; ++call) all.push_back(step().item<float>());
      for (const Tensor& t : {x.detach(), x.grad()}) {
        for (float v : t.to_vector<float>()) all.push_back(v);
      }
    }
    CHECK(seen[0] == seen[1]);
  }
}

TEST_CASE("cat elision: the norm of all gradients takes as many kernels for 400 as for 5" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  manual_seed(4);
  uint64_t few = 0;
  for (const int n : {5, 126, 400}) {
    CAPTURE(n);
    std::vector<Tensor> all;
    for (int k = 0; k < n; ++k) all.push_back(randn({1 + k % 3, 2}).set_requires_grad());
    // With one dtype or two: then scalars are converted, and written directly into the list.
    const auto clip = [&] {
      for (const Tensor& p : all) p.set_grad(p.detach() * 3.0);
      return Tensors{optim::clip_grad_norm_(all, 0.5), all[1].grad() + 0.0,
                     all.back().grad() + 0.0};
    };
    const uint64_t count = kernels(clip);
    if (n == 5) few = count;
    CHECK(count == few);
    all[0] = randn({2, 2}).to(kFloat64).set_requires_grad();
    kernels(clip);
    // A list of lists, whose parts come from several kinds of kernels.
    kernels([&] {
      Tensors sums, lists;
      for (const Tensor& p : all) sums.push_back((p.detach().to(kFloat32) * 0.5).sum());
      for (int k = 0; k < 3; ++k) lists.push_back(stack(sums) * (k + 1.0));
      return Tensors{cat(lists) + 1.0, stack({stack(sums), stack(sums)}, 1), sums[2] + 0.0};
    });
  }
}

TEST_CASE("windows: those found disjoint share no element" * doctest::test_suite("host")) {
  std::mt19937 rng(6);
  const auto below = [&](int n) { return static_cast<int64_t>(rng() % static_cast<unsigned>(n)); };
  int found = 0, columns = 0;
  for (int k = 0; k < 20000; ++k) {
    const Tensor whole = zeros({3 + below(3), 2 + below(3), 4 + below(5)});
    Tensor windows[2];
    std::vector<int64_t> touched[2];
    for (int w = 0; w < 2; ++w) {
      Tensor t = whole;
      for (int d = 0; d < 3; ++d) {
        const int64_t begin = below(static_cast<int>(t.size(d)));
        t = t.slice(d, begin, begin + 1 + below(static_cast<int>(t.size(d) - begin)), 1 + below(2));
      }
      windows[w] = below(2) ? t.transpose(0, 2) : t;
      for (int64_t i = 0; i < t.size(0); ++i) {
        for (int64_t j = 0; j < t.size(1); ++j) {
          for (int64_t l = 0; l < t.size(2); ++l) {
            touched[w].push_back(t.select(0, i).select(0, j).select(0, l).impl()->offset);
          }
        }
      }
      std::ranges::sort(touched[w]);
    }
    std::vector<int64_t> both;
    std::ranges::set_intersection(touched[0], touched[1], std::back_inserter(both));
    TensorImpl &a = *windows[0].impl(), &b = *windows[1].impl();
    const bool is = apart(a, b);
    // Counted like a recording, from the first window.
    const int64_t first = below(30);
    a.offset -= first;
    b.offset -= first;
    CHECK((both.empty() || !apart(a, b)));
    a.offset += first;
    b.offset += first;
    CHECK(is == apart(b, a));
    CHECK((!is || both.empty()));
    found += is;
    columns += both.empty();
  }
  CHECK(found > columns / 2);  // Other interleavings are not detected.
}

TEST_CASE("cat elision: gradients of halves are stored in their concatenation" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  manual_seed(5);
  const auto gated = [](const Tensor& x) {
    Tensor all = (x * 1.5).detach().set_requires_grad();
    const auto halves = all.chunk(2, -1);
    const Tensor y = silu(halves[0]) * halves[1];
    y.backward(y.detach() + 1.0);
    return Tensors{matmul(all.grad(), x.t())};
  };
  // Runs of four elements are too short for a vector store, so they are copied.
  const uint64_t apart = kernels([&, x = randn({9, 8})] { return gated(x); });
  for (const DType t : {kFloat32, kFloat64, kBFloat16}) {
    const Tensor x = randn({9, 2 * 17}).to(t);
    CHECK(kernels([&] { return gated(x); }) == apart - 1);
  }
  // Adjacent along the first dim, before a part that is read from another tensor.
  const Tensor x = randn({5, 33}), other = randn({2, 33});
  kernels([&] {
    return Tensors{cat({x * 2.0, x.exp(), other}) + 1.0, cat({x + 1.0, x - 1.0}).t()};
  });
  // Rotated queries and keys, forward and backward.
  const auto turned = [](const Tensor& w) {
    Tensor all = (w * 1.5).detach().set_requires_grad();
    const auto parts = all.view({2, 20, 12, 16}).split(8, 2);
    const auto qk =
        rotary_embedding(parts[0].transpose(1, 2), arange(20)).transpose(1, 2).chunk(2, 2);
    const Tensor y = scaled_dot_product_attention(qk[0].transpose(1, 2), qk[1].transpose(1, 2),
                                                  parts[1].transpose(1, 2), {.causal = true});
    y.backward(y.detach() + 1.0);
    return Tensors{all.grad() * 2.0};
  };
  // Scaling, positions, frequencies, angles; rotation and attention and their gradients.
  const Tensor w = randn({2, 20, 12 * 16});
  CHECK(kernels([&] { return turned(w); }) <= 11);
}

TEST_CASE("cat elision: parts of other dtypes, and without elements" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  const Tensor x = randn({5, 64}), y = randn({3, 64}).to(kFloat64), none = randn({0, 64});
  kernels([&] { return Tensors{cat({x * 2.0, y * 2.0}) + 1.0}; });
  kernels([&] {
    return Tensors{cat({x * 2.0, none * 2.0, x.exp()}) + 1.0, cat({none * 2.0, none.exp()})};
  });
}

TEST_CASE("cat elision: a part that is read afterwards keeps its values") {
  const auto fn = [](const Tensor& x) {
    const Tensor a = x * 2.0, all = cat({a, x.exp()}, 1);
    return Tensors{all, matmul(a, a.t())};
  };
  const Tensor x = randn({32, 32});
  const Tensors eager = fn(x);
  auto s = step(fn, {.require_graph = true});
  for (int call = 0; call < 3; ++call) CHECK(same_bits(s(x), eager));
}

TEST_CASE("windows: offsets of a buffer count from the rows that a step uses first" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  manual_seed(7);
  const Tensor x = randn({8, 32}), buffer = randn({8, 32});
  std::vector<uint64_t> seen[2];
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    const Tensor b = buffer.clone();
    auto step = brrr::step(
        [&] {
          const Tensor old = b.narrow(0, 5, 2) * 0.5, before = x + b;
          b.narrow(1, 3, 7).copy_(b.narrow(1, 8, 7) * 2.0);
          return std::vector<Tensor>{old, before, x * b, b.narrow(1, 2, 2) + 1.0};
        },
        {.mode = mode, .build_at_first_call = true});
    for (int call = 0; call < 3; ++call) {
      for (const Tensor& t : step()) {
        std::ranges::copy(fuzz::bits_of(t), std::back_inserter(seen[mode == Mode::Graph]));
      }
    }
  }
  CHECK(seen[0] == seen[1]);
}

TEST_CASE("cat elision: copies are kept for a result that would outlive large temporaries" *
          doctest::test_suite("host")) {
  const test::TempCache cache;
  manual_seed(8);
  const Tensor x = randn({1, 256}), y = randn({1024, 256}), w = randn({256, 256});
  const Tensor large = randn({8192, 256});
  const auto late = [&] {
    const Tensor first = x * 2.0, largest = matmul(large, w).sum({0}).max();
    return matmul(cat({first, y * largest}), w).sum({0});
  };
  size_t peaks[2];
  for (const Mode mode : {Mode::Eager, Mode::Graph}) {
    auto step = brrr::step(late, {.mode = mode, .build_at_first_call = true, .part_bytes = -1});
    step();
    reset_peak_memory(kCPU);
    const size_t before = memory_stats(kCPU).live;
    step();
    peaks[mode == Mode::Graph] = memory_stats(kCPU).peak - before;
  }
  CHECK(peaks[1] <= peaks[0] + 4096);
}
