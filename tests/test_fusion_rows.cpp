// Reductions and row ops are fused with the ops around them, with eager's bits.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "brrr.h"
#include "tests/kernels.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

using Tensors = std::vector<Tensor>;
using test::kernels;

// f(x) over rows of lengths with and without tails, of few and many rows, in each dtype.
template <class F> void over_shapes(uint64_t want, const F& f) {
  const std::vector<IntList> all = {{8, 4100}, {130, 65}, {3, 5, 33}, {200, 8}, {21, 4}};
  for (const DType t : {kFloat32, kFloat64, kBFloat16}) {
    for (size_t k = 0; k < (t == kFloat32 ? all.size() : 1); ++k) {
      CAPTURE(to_string(all[k]));
      CAPTURE(t);
      const Tensor x = randn(all[k]).to(t), w = randn({all[k].back()}).to(t);
      CHECK(kernels([&] { return f(x, w); }) == want);
    }
  }
}

}  // namespace

TEST_CASE("row fusion: what users write with exp, sum and division is one kernel") {
  const test::TempCache cache;
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    const Tensor e = exp(x - amax(x, {-1}, true));
    return Tensors{e / e.sum({-1}, true) * w};
  });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    const Tensor d = x - x.mean({-1}, true);
    return Tensors{d * rsqrt((d * d).mean({-1}, true) + 1e-5) * w};
  });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {  // Results per row and per element.
    const Tensor s = (x * 0.5).sum({-1}, true), p = prod(x * 0.3, {-1}, true);
    return Tensors{s, x * w + s, norm(x, {-1}, true), p, tanh(s) * 2.0};
  });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {  // Expanded, like the gradient of a sum.
    const Tensor s = x.square().sum({-1}, true);
    return Tensors{x * w + s.expand(x.sizes()), s * 2.0, w.expand(x.sizes()) - s};
  });
}

TEST_CASE("row fusion: row ops and their neighbours") {
  const test::TempCache cache;
  over_shapes(1, [](const Tensor& x, const Tensor& w) { return Tensors{softmax(x * w, -1) + x}; });
  over_shapes(
      1, [](const Tensor& x, const Tensor& w) { return Tensors{log_softmax(x + w, -1).exp()}; });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    const int64_t n = x.size(-1);
    return Tensors{layer_norm(x + w + x * 0.1, {n}, w, Tensor(), 1e-5)};
  });
  over_shapes(1, [](const Tensor& x, const Tensor& w) {
    const int64_t n = x.size(-1);
    return Tensors{rms_norm(gelu(x), {n}, w, 1e-5) * 3.0, softmax(x, -1)};
  });
}

TEST_CASE("row fusion: short rows, several to a vector or one") {
  const test::TempCache cache;
  for (const auto& of : {std::pair{IntList{37, 2}, kFloat32},
                         {{3, 11, 4}, kBFloat16},
                         {{50, 8}, kFloat64},
                         {{64, 8}, kFloat32},
                         {{9, 16}, kFloat32}}) {
    const IntList rows = of.first;
    const DType t = of.second;
    CAPTURE(to_string(rows));
    IntList numbers = rows;
    numbers[numbers.size() - 1] = 1;
    const Tensor x = randn(rows).to(t), of_row = randn(numbers).to(t), mask = randn(rows) > 0.0;
    const Tensor w = randn({rows.back()}).to(t), one = randn({}).to(t);
    CHECK(kernels([&] {
            const Tensor d = where(mask, x, one) * w - of_row, p = softmax(d, -1);
            const Tensor s = (p * d).sum({-1}, true), most = amax(d, {-1}, true);
            return Tensors{p + s, s * 2.0, logsumexp(d, {-1}), most, d > most - 0.5};
          }) <= 2);
    CHECK(kernels([&] {  // With indices, too.
            const Tensor at = arange(x.numel()).reshape(rows).to(x.dtype()) * 0.01;
            return Tensors{softmax(x + at, -1), (tril(x) * at).sum({-1})};
          }) <= 3);
    CHECK(kernels([&] {  // No expensive per-row scalar.
            const Tensor y = softmax(x * w, -1), c = y - y.mean({-1}, true);
            return Tensors{c * rsqrt((c * c).mean({-1}, true) + 0.1) + of_row};
          }) <= 2);
  }
}

TEST_CASE("row fusion: short rows without folds, with shared operands and per-row scalars") {
  const test::TempCache cache;
  for (const int64_t n : {2, 3, 10}) {
    CAPTURE(n);
    const DType t = n == 10 ? kBFloat16 : kFloat32;
    const Tensor x = randn({7, 13, n}).to(t), w = randn({n}).to(t), b = randn({n}).to(t);
    const Tensor m = randn({7, 13, 1}).to(t);
    CHECK(kernels([&] { return Tensors{where(x > b, x * w, b), x > w}; }) == 1);
    CHECK(kernels([&] { return Tensors{(x - m) * w + b}; }) == 1);
  }
}

TEST_CASE("row fusion: nothing is read past the end of an operand that rows share") {
  const test::TempCache cache;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const two =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(two != MAP_FAILED);
  char* const end = static_cast<char*>(two) + page;
  REQUIRE(mprotect(end, page, PROT_NONE) == 0);
  for (const DType t : {kFloat32, kInt32, kFloat64, kInt64, kBFloat16, kUInt8}) {
    for (const int64_t n : {2, 3, 4, 8, 10}) {
      CAPTURE(n);
      CAPTURE(t);
      const auto bytes = n * static_cast<int64_t>(itemsize(t));
      Tensor w = from_blob(static_cast<void*>(end - bytes), {n}, t, false);
      w.copy_(randint(1, 5, {n}).to(t));
      const Tensor x = randint(0, 9, {50, n}).to(t);
      CHECK(kernels([&] { return Tensors{where(x > w, x * w, w)}; }) == 1);
      if (is_floating(t)) CHECK(kernels([&] { return Tensors{softmax(x * w, -1)}; }) <= 2);
    }
  }
  munmap(two, 2 * page);
}

TEST_CASE("row fusion: gradients, with those of weights, are one kernel") {
  const test::TempCache cache;
  for (const IntList& sizes : {IntList{9, 11}, {64, 64}, {130, 65}, {200, 48}, {3, 50, 32}}) {
    CAPTURE(to_string(sizes));
    const int64_t n = sizes.back();
    Tensor x = randn(sizes), w = randn({n}), b = randn({n});
    for (Tensor* t : {&x, &w, &b}) t->set_requires_grad(true);
    const auto fn = [&] {
      const Tensor y = layer_norm(x * 1.5, {n}, w, b, 1e-5);
      Tensors g = grad({y}, {x, w, b}, {}, {cos(y)});
      g.push_back(y);
      return g;
    };
    CHECK(kernels(fn) == 1);
    CHECK(kernels([&] {
            const Tensor y = softmax(x + b, -1);
            return grad({y}, {x, b}, {}, {y * y});
          }) == 1);
    CHECK(kernels([&] {  // As users write it.
            const Tensor e = exp(x - amax(x, {-1}, true)), y = e / e.sum({-1}, true);
            return grad({y}, {x}, {}, {y * y});
          }) == 1);
  }
}

TEST_CASE("row fusion: a loss over rows, its check of ids before anything is written") {
  const test::TempCache cache;
  Tensor x = randn({130, 65}), ids = randint(0, 65, {130}), w = randn({65});
  x.set_requires_grad(true);
  const auto fn = [&] {
    const Tensor loss = cross_entropy(x * 2.0 + w, ids);
    return Tensors{loss, grad({loss}, {x})[0]};
  };
  CHECK(kernels(fn) <= 3);
  CHECK(kernels([&] {
          const Tensor loss =
              cross_entropy(x * 2.0, ids, {.ignore_index = 3, .label_smoothing = 0.1});
          return Tensors{loss, grad({loss}, {x})[0]};
        }) <= 3);
  const Tensor bad = ids.clone(), kept = zeros({130, 65});
  auto step = brrr::step(
      [&] {
        kept.add_(1.0);
        return cross_entropy(x * 2.0, bad);
      },
      {.require_graph = true, .build_at_first_call = true});
  step();
  step();
  bad.fill_(99);
  CHECK_THROWS_WITH_AS(step(), doctest::Contains("id 99 at position 0 is out of range"), Error);
  CHECK(kept.sum().item<double>() == doctest::Approx(2.0 * 130 * 65));
}

TEST_CASE("row fusion: one_hot is computed from ids, checked before anything is written") {
  const test::TempCache cache;
  const Tensor x = randn({130, 65}), ids = randint(0, 65, {130}), kept = zeros({130, 65});
  const auto hit = [&] { return where(one_hot(ids, 65) != 0, x, 0.0); };
  const auto each = [&] { return Tensors{hit() * 2.0}; };
  const auto rows = [&] { return Tensors{hit().sum({-1})}; };
  CHECK(kernels(each) == 1);
  CHECK(kernels(rows) == 1);
  auto step = brrr::step(
      [&] {
        kept.add_(1.0);
        return hit();
      },
      {.require_graph = true, .build_at_first_call = true});
  step();
  step();
  ids.slice(0, 7, 8).fill_(int64_t{65});
  CHECK_THROWS_WITH_AS(
      step(), "one_hot: index 65 is out of range: dim 1 has size 65, so indices are in [0, 65)",
      Error);
  CHECK(kept.sum().item<double>() == doctest::Approx(2.0 * 130 * 65));
}

TEST_CASE("row fusion: similar but incompatible ops are not fused") {
  const test::TempCache cache;
  const Tensor x = randn({33, 33}), y = randn({12, 40});
  // Row sums without keepdim broadcast along columns.
  CHECK(kernels([&] { return Tensors{x / x.sum({-1})}; }) == 2);
  CHECK(kernels([&] { return Tensors{x - x.mean({0}, true)}; }) == 2);
  CHECK(kernels([&] { return Tensors{(y * 2.0).transpose(0, 1).contiguous().sum({-1})}; }) >= 1);
  // A sum over rows is known only after all rows.
  kernels([&] {
    const Tensor s = (y * 3.0).sum({0});
    return Tensors{y + s, s * 2.0};
  });
  // The rows of a tensor are not the rows of a view of it.
  kernels([&] {
    const Tensor e = exp(y);
    return Tensors{e.sum({-1}), e.view({24, 20}).sum({-1}), e.view({480}).sum()};
  });
  CHECK(kernels([&] { return Tensors{softmax(y.view({160, 3}) * 2.0, -1)}; }) == 2);  // Short rows.
  // A scalar that no row changes is computed in the kernel too; one that is written again is not.
  CHECK(kernels([&] {
          const Tensor s = full({}, 3.0) * 0.5, t = exp(s);
          return Tensors{(y * s).sum({-1}), t};
        }) == 1);
  CHECK(kernels([&] {
          const Tensor s = full({}, 3.0), sum = (y * s).sum({-1});
          s.mul_(2.0);
          return Tensors{sum, (y * s).sum({-1}), s};
        }) >= 2);
  // In place, before and after a fold reads it.
  kernels([&] {
    const Tensor z = y * 1.0;
    const Tensor s = z.sum({-1}, true);
    z.mul_(2.0);
    return Tensors{z, s, z - s, z.sum({-1}, true)};
  });
}

TEST_CASE("row fusion: dims of one element, every other dim, means over rows") {
  const test::TempCache cache;
  const Tensor x = randn({9, 12, 1}), y = randn({4, 9, 16}), z = randn({70, 33});
  for (const IntList& dims : {IntList{1}, {0}, {1, 2}, {0, 2}}) {
    CAPTURE(to_string(dims));
    const auto sums = [&] { return Tensors{(x * 2.0).sum(dims), (x * 2.0).sum(dims, true)}; };
    CHECK(kernels(sums) == 1);
  }
  kernels([&] {
    const Tensor t = y * 2.0;
    return Tensors{t.sum({0, 2}), t.sum({1}), t.sum({0, 1}), t.sum({2})};
  });
  const auto finished = [&] {
    const Tensor t = z * 2.0;
    return Tensors{t.mean({0}), norm(t, {0}), t.sum({0}), t};
  };
  CHECK(kernels(finished) == 1);
  kernels([&] { return Tensors{logsumexp(z * 2.0, {0}), (z.to(kFloat64) * 2.0).mean({0})}; });
  CHECK(kernels([&] {  // As users write it.
          const Tensor d = z - z.mean({0}, true);
          return Tensors{d * rsqrt(square(d).mean({0}, true) + 1e-5)};
        }) == 4);
}

TEST_CASE("row fusion: a whole tensor of any length, with ops on its sum") {
  const test::TempCache cache;
  for (const int64_t n : {1, 2, 15, 16, 17, 64, 80, 4095, 4096, 4097, 70000, 4096 * 4096 + 4097}) {
    CAPTURE(n);
    for (const DType t : {kFloat32, kFloat64, kBFloat16}) {
      if (n > 70000 && t != kFloat32) continue;
      const Tensor x = randn({n}).to(t);
      const auto many = [&] {
        const Tensor y = x * 0.5, mean = y.mean(), top = amax(y);
        return Tensors{
            y, mean, norm(y) + 1.0, top * mean, prod(1.0 + y * 1e-3), y.sum().to(kFloat64)};
      };
      CHECK((kernels(many) == 1 || n == 1));
    }
  }
  const Tensor x = randn({24}), s = randn({1});
  CHECK(kernels([&] {  // One row is a whole 1-d tensor, with a broadcast along it.
          const Tensor t = tanh(x * 2.0);
          return Tensors{t, t * s.expand({24}), t.mean()};
        }) == 1);
  CHECK(kernels([&] { return Tensors{x / x.sum()}; }) == 2);  // Elements wait for the sum.
}

TEST_CASE("row fusion: sums over rows of values that are the same in all rows") {
  const test::TempCache cache;
  const Tensor x = randn({64, 32}), b = randn({32}).set_requires_grad();
  CHECK(kernels([&] { return Tensors{full({64, 32}, 2.0).sum({0})}; }) == 1);
  CHECK(kernels([&] { return Tensors{(x.sum({-1}, true) * full({64, 32}, 1.0)).sum({0})}; }) == 1);
  kernels([&] {
    b.set_grad({});
    ((x + b) * 2.0).sum().backward();
    return Tensors{b.grad()};
  });
  kernels([&] {
    b.set_grad({});
    (layer_norm(x, {32}, b, b) * 2.0).sum().backward();
    return Tensors{b.grad()};
  });
}

TEST_CASE("row fusion: views that were fused before their kernel had rows") {
  const test::TempCache cache;
  const Tensor x = randn({16, 32}), v = randn({90});
  kernels([&] {
    const Tensor z = x * 1.0, t = z.t();
    t.mul_(2.0);
    return Tensors{(t + 1.0).sum({-1}), z};
  });
  kernels([&] {
    const Tensor z = v * 1.0, t = z.slice(0, 0, 90, 2);
    t.mul_(2.0);
    return Tensors{(t + 1.0).sum(), z};
  });
}

TEST_CASE("row fusion: explain() says what it saves") {
  const test::TempCache cache;
  const Tensor x = randn({8, 32}), w = randn({32});
  auto step = brrr::step([&] { return ((x * w + 1.0) * 2.0).sum({-1}); },
                         {.require_graph = true, .build_at_first_call = true});
  step();
  // Loaded: x, w. Stored: a scalar per row. Unfused, each op loads and stores 8 rows of 32.
  const int kernel = 4 * (256 + 32 + 8), apart = 4 * (256 * 7 + 32 + 8);
  CHECK(step.explain().find(fmt::format("{} bytes moved instead of {} bytes", kernel, apart)) !=
        std::string::npos);
  // An operand that an op has twice is read once, unfused too.
  auto twice =
      brrr::step([&] { return x * x + 1.0; }, {.require_graph = true, .build_at_first_call = true});
  twice();
  CHECK(twice.explain().find("2048 bytes moved instead of 4096 bytes") != std::string::npos);
}

TEST_CASE("row fusion: explain() says why neighbours are not fused") {
  const test::TempCache cache;
  NoGradGuard guard;
  const auto plan = [](const std::function<Tensor(const Tensor&)>& f) {
    auto s = step(f, {.require_graph = true, .build_at_first_call = true});
    s(randn({64, 32}));
    return s.explain();
  };
  const std::string columns = plan([](const Tensor& x) {
    const Tensor y = exp(x);
    return y / y.sum({0});
  });
  CHECK(columns.find("not fused with ") != std::string::npos);
  CHECK(columns.find("complete only after the last row") != std::string::npos);
  const std::string part = plan([](const Tensor& x) { return exp(x).slice(0, 0, 10) * 2.0 + 1.0; });
  CHECK(part.find("one iterates over [64, 32], the other over [10, 32]") != std::string::npos);
  // A sum of integers has its own kernel, before a generated one and after it.
  const std::string before =
      plan([](const Tensor& x) { return square(x - gt(x, 0.0).sum({0}, true)) * 2.0; });
  CHECK(before.find("not fused with sum, 256 bytes between them: this fold") != std::string::npos);
  const std::string after = plan([](const Tensor& x) { return gt(exp(x) * 2.0, 1.0).sum({0}); });
  CHECK(after.find("2048 bytes between them: this fold") != std::string::npos);
  const std::string one = plan([](const Tensor& x) { return exp(x) * 2.0 + 1.0; });
  CHECK(one.find("not fused with ") == std::string::npos);
}

TEST_CASE("row fusion: one op on many tensors is one kernel") {
  const test::TempCache cache;
  for (const int n : {5, 40}) {
    CAPTURE(n);
    Tensors all;
    for (int k = 0; k < n; ++k) all.push_back(randn({k % 7 == 0 ? 1 : 300 * k + k, 3}));
    const Tensor scale = randn({});
    const auto each = [&](const auto& f) {
      Tensors out;
      for (const Tensor& t : all) out.push_back(f(t));
      return out;
    };
    CHECK(kernels([&] { return each([](const Tensor& t) { return norm(t); }); }) == 1);
    CHECK(kernels([&] { return each([&](const Tensor& t) { return tanh(t * scale); }); }) == 1);
    CHECK(kernels([&] {
            const Tensors norms = each([](const Tensor& t) { return t.square().sum(); });
            const Tensor s = 1.0 / sqrt(stack(norms).sum());
            return each([&](const Tensor& t) { return t * s; });
          }) == 3);
    // Each waits for the one before.
    CHECK(kernels([&] {
            Tensor s = scale;
            return each([&](const Tensor& t) { return s = (t * s).sum(); });
          }) == static_cast<uint64_t>(n));
  }
}

TEST_CASE("row fusion: sums over rows of any number, on threads") {
  const test::TempCache cache;
  for (const int64_t rows : {8, 63, 64, 65, 1000, 5000}) {
    CAPTURE(rows);
    const Tensor x = randn({rows, 48}), g = randn({rows, 48});
    kernels([&] {
      const Tensor h = x * g;
      return Tensors{h + 1.0, h.sum({0}), (h * h).sum({0}), h.sum({-1})};
    });
  }
}

// Larger than the caches: rows of whole cache lines are written with streaming stores, and the next
// rows are prefetched, also past the last row.
TEST_CASE("row fusion: rows with streaming stores") {
  const test::TempCache cache;
  const auto steps = [](const Tensor& x, const Tensor& g, int64_t n) {
    const Tensor w = ones({n}) * 1.5, b = ones({n}) * 0.5;
    CHECK(kernels([&] { return Tensors{softmax(x, -1)}; }) == 1);
    CHECK(kernels([&] { return Tensors{layer_norm(x * 1.5, {n}, w, b) + g}; }) == 1);
    const auto backward = [&] {
      std::vector<Tensor> leaves;
      for (const Tensor& t : {x, w, b}) leaves.push_back(t.detach().set_requires_grad(true));
      const Tensor y = layer_norm(leaves[0], {n}, leaves[1], leaves[2]);
      return grad({(y * g).sum()}, leaves);
    };
    kernels(backward);
    // Passes that store no elements, elements picked by an id, sums over rows.
    kernels([&] {
      const Tensor h = x * g, s = (h - h.mean({-1}, true)).exp().sum({-1}, true);
      return Tensors{s.log(), (h * s).sum({0}), (x - s).mean({-1})};
    });
    if (x.dim() != 2) return;
    const Tensor ids = randint(0, n, {x.size(0)});
    kernels([&] {
      const Tensor leaf = x.detach().set_requires_grad(true);
      const Tensor loss = cross_entropy(leaf, ids);
      return Tensors{loss.detach(), grad({loss}, {leaf})[0]};
    });
  };
  const Tensor all = randn({8'500'016}), other = randn({8'500'016});
  const auto rows = [&](const Tensor& t, int64_t from, IntList sizes) {
    return t.slice(0, from, from + numel_of(sizes)).view(sizes);
  };
  for (const int64_t n : {1024, 1000, 72}) {
    CAPTURE(n);
    const int64_t count = 8'500'000 / n;
    steps(rows(all, 0, {count, n}), rows(other, 0, {count, n}), n);
  }
  steps(rows(all, 16, {5, 415, 4096}), rows(other, 1, {5, 415, 4096}), 4096);
}
