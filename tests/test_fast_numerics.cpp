// Numerics::Fast in random programs: float32 and float64 keep Strict's bits (test_graph_fuzz.cpp).
// With 16-bit floats each element's error stays within what the roundings that only one mode makes
// can add up to: every value carries a running bound, which later ops propagate.
// BRRR_LONG_TESTS=1 tries many more, BRRR_FUZZ_SEED=n BRRR_FUZZ_PACKS=m those from n on.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <random>

#include "tests/sanitizer.h"
#include "tests/temp_cache.h"

using namespace brrr;

namespace {

constexpr int64_t kRows = 32, kWidth = 16;

// Strict's value and, per element in float64, by how much Fast's may differ from it.
struct Bounded {
  Tensor value, bound;
};

Tensor wide(const Tensor& t) { return t.detach().to(kFloat64); }
Tensor size_of(const Tensor& t) { return abs(wide(t)); }
double largest(const Tensor& t) { return abs(wide(t)).max().item<double>(); }

// Half a unit in the last place, relative; for floats that neither mode rounds, the error that the
// same vector function may make on operands that differ.
double rounding(DType t) { return t == kBFloat16 ? 0x1p-8 : t == kFloat16 ? 0x1p-11 : 0x1p-22; }
constexpr double kSumOf32 = 0x1p-20;      // Relative to a sum's terms, in the same order.
constexpr double kLeastOfHalf = 0x1p-24;  // float16's smallest subnormal.

struct Op {
  unsigned code, a, b;
};

/// Ops on a pool of values; those that overflow, or whose bound is too loose, are left out.
class Program {
 public:
  Program(unsigned seed, const Tensor& x) : random_(seed), x_(x) {
    constexpr DType all[] = {kBFloat16, kFloat16};
    dtype_ = all[seed % 2];
    leaves_ = {(rand({kRows, kWidth}) * 2.0 - 1.0).to(dtype_),
               (rand({kWidth}) * 2.0 - 1.0).to(dtype_), (rand({kRows, 1}) * 2.0 - 1.0).to(dtype_),
               (randn({kWidth, kWidth}) * 0.25).to(dtype_), rand({kWidth}) * 2.0 - 1.0};
    std::vector<Bounded> pool = first();
    const size_t length = 4 + random_() % 12;
    for (int tries = 0; ops_.size() < length && tries < 100; ++tries) {
      const Op op{static_cast<unsigned>(random_()), static_cast<unsigned>(random_()),
                  static_cast<unsigned>(random_())};
      const Bounded z = run(op, pool);
      if (!z.value.defined() || !says_something(z)) continue;
      pool.push_back(z);
      ops_.push_back(op);
    }
    results_ = {pool.back()};
    for (int k = 0; k < 3; ++k) {
      picks_.push_back(static_cast<size_t>(random_()) % pool.size());
      results_.push_back(pool[picks_.back()]);
    }
  }

  /// Strict's results and the bounds.
  const std::vector<Bounded>& expected() const { return results_; }
  std::vector<Tensor> operator()(const Tensor&) {
    const bool before = std::exchange(bounds_, false);
    std::vector<Bounded> pool = first();
    for (const Op& op : ops_) pool.push_back(run(op, pool));
    bounds_ = before;
    std::vector<Tensor> all = {pool.back().value};
    for (size_t k : picks_) all.push_back(pool[k].value);
    return all;
  }

 private:
  static bool says_something(const Bounded& z) {
    const double top = largest(z.value);
    return top < 100 && largest(z.bound) <= 0.25 * top;
  }

  std::vector<Bounded> first() const {
    std::vector<Bounded> pool;
    const auto exact = [&](const Tensor& t) {
      pool.push_back({t, bounds_ ? zeros(t.sizes(), kFloat64) : Tensor()});
    };
    exact(x_);
    for (const Tensor& t : leaves_) exact(t);
    pool.push_back(made(x_.to(dtype_), [&] { return pool[0].bound; }));
    return pool;
  }

  // The value with its bound: passed() propagates the operands' bounds, and each mode may round.
  template <class F> Bounded made(const Tensor& z, const F& passed) const {
    if (!bounds_ || !z.defined()) return {z, {}};
    const Tensor d = passed();
    const double u = rounding(z.dtype()), least = z.dtype() == kFloat16 ? kLeastOfHalf : 0.0;
    return {z, d + (size_of(z) + d) * (2.02 * u) + least};
  }
  // A view, with the same view of the bound.
  template <class F> Bounded moved(const Bounded& x, const F& view) const {
    return {view(x.value), bounds_ ? view(x.bound) : Tensor()};
  }

  // For a row op: the largest bound of a row's elements.
  static Tensor most(const Tensor& bound, int64_t d) { return bound.max({d}, true); }

  Bounded times(const Bounded& a, const Bounded& b) const {
    return made(a.value * b.value, [&] {
      return size_of(a.value) * b.bound + size_of(b.value) * a.bound + a.bound * b.bound;
    });
  }
  Bounded product(const Bounded& a, const Bounded& b) const {
    return made(matmul(a.value, b.value), [&] {
      const Tensor x = size_of(a.value), y = size_of(b.value);
      return matmul(x, b.bound) + matmul(a.bound, y + b.bound) + matmul(x, y) * kSumOf32;
    });
  }
  // (x - mean) / sqrt(mean of squares + eps), with and without the mean.
  Bounded normed(const Bounded& a, bool centred) const {
    constexpr double eps = 1e-2;
    const IntList last{a.value.size(-1)};
    const Tensor z =
        centred ? layer_norm(a.value, last, {}, {}, eps) : rms_norm(a.value, last, {}, eps);
    return made(z, [&] {
      const Tensor x = wide(a.value);
      const Tensor n = centred ? x - x.mean({-1}, true) : x;
      const Tensor d = centred ? a.bound + a.bound.mean({-1}, true) : a.bound;
      const Tensor deviation = sqrt((n * n).mean({-1}, true) + eps);
      const Tensor s = sqrt((d * d).mean({-1}, true));
      const Tensor least = maximum(deviation - s, sqrt(zeros({}, kFloat64) + eps));
      return d / least + abs(n) * s / (deviation * least) + 0x1p-18;
    });
  }
  Bounded over(const Bounded& a, const Bounded& b) const {
    return made(a.value / b.value, [&] {
      const Tensor y = size_of(b.value);
      return (a.bound + size_of(a.value) / y * b.bound) / clamp(y - b.bound, 1e-6, 1e6);
    });
  }

  Bounded run(const Op& op, const std::vector<Bounded>& pool) const {
    const Bounded &a = pool[pool.size() - 1 - op.a % std::min<size_t>(pool.size(), 4)],
                  &b = pool[op.b % pool.size()];
    const bool same_type = a.value.dtype() == b.value.dtype();
    const int64_t d = a.value.dim() ? op.b % a.value.dim() : 0;
    if (op.code % 32 < 8 && !broadcasts(a.value, b.value)) return {};
    if (op.code % 32 >= 16 && a.value.dim() == 0) return {};
    const auto each = [&](const Tensor& z, double slope = 1) {
      return made(z, [&] { return a.bound * slope; });
    };
    switch (op.code % 32) {
      case 0:
      case 1:
        return made(a.value + b.value, [&] { return a.bound + b.bound; });
      case 2:
        return made(a.value - b.value, [&] { return a.bound + b.bound; });
      case 3:
      case 4:
        return times(a, b);
      case 5:
        return made(maximum(a.value, b.value), [&] { return maximum(a.bound, b.bound); });
      case 6: {
        const Tensor left = leaves_[0].select(0, 0).slice(0, 0, 1) > 0.0;
        return made(where(left, a.value, b.value), [&] { return maximum(a.bound, b.bound); });
      }
      case 7: {
        const Bounded size = made(abs(b.value), [&] { return b.bound; });
        return over(a, made(size.value + 0.5, [&] { return size.bound; }));
      }
      case 8:
        return each(tanh(a.value));
      case 9:
        return each(sigmoid(a.value), 0.25);
      case 10:
        return each(relu(a.value));
      case 11:
        return each(a.value * -0.75, 0.75);
      case 12:
        return each(gelu(a.value), 1.13);
      case 13: {
        const Bounded c = each(clamp(a.value, -2.0, 1.0));
        return made(exp(c.value), [&] { return exp(wide(c.value)) * (exp(c.bound) - 1.0); });
      }
      case 14:  // Written in place, twice.
        if (a.value.dim() == 0 || !broadcasts_into(a.value, b.value)) return {};
        {
          const Bounded half = each(a.value * 0.5, 0.5);
          half.value.add_(b.value);
          const Bounded sum = made(half.value, [&] { return half.bound + b.bound; });
          sum.value.slice(0, 0, sum.value.size(0)).mul_(0.5);
          return made(sum.value, [&] { return sum.bound * 0.5; });
        }
      case 15:
        return made(a.value.to(op.b % 2 ? dtype_ : kFloat32), [&] { return a.bound; });
      case 16:
      case 17:
        return made(softmax(a.value, d), [&] {
          return softmax(wide(a.value), d) * (exp(most(a.bound, d) * 2.0) - 1.0);
        });
      case 18:
        return made(log_softmax(a.value, d), [&] {
          return a.bound + most(a.bound, d) + most(size_of(a.value), d) * kSumOf32;
        });
      case 19:
        return normed(a, true);
      case 20:
        return normed(a, false);
      case 21:
        return made(a.value.sum({d}, true) * 0.125, [&] {
          const Tensor passed = a.bound.sum({d}, true) + size_of(a.value).sum({d}, true) * kSumOf32;
          return (passed +
                  (size_of(a.value.sum({d}, true)) + passed) * (2.02 * rounding(a.value.dtype()))) *
                 0.125;
        });
      case 22:
        return made(a.value.mean({d}, true), [&] {
          return a.bound.mean({d}, true) + size_of(a.value).mean({d}, true) * kSumOf32;
        });
      case 23:
        return made(a.value.max({d}, true), [&] { return most(a.bound, d); });
      case 24:
      case 25: {
        const bool fits = same_type && a.value.dim() == 2 && b.value.dim() == 2;
        if (fits && a.value.size(1) == b.value.size(0)) return product(a, b);
        if (fits && a.value.size(0) == b.value.size(0)) {
          return product(moved(a, [](const Tensor& t) { return t.t(); }), b);
        }
        return {};
      }
      case 26:
        return moved(a, [&](const Tensor& t) { return t.transpose(0, d); });
      case 27:
        if (a.value.size(d) < 2) return {};
        return moved(a, [&](const Tensor& t) { return t.slice(d, 0, t.size(d), 2); });
      case 28:
        if (!same_type || a.value.sizes() != b.value.sizes()) return {};
        return {cat({a.value, b.value}, d), bounds_ ? cat({a.bound, b.bound}, d) : Tensor()};
      case 29: {
        if (a.value.dim() != 2) return {};
        const Tensor ids = full({a.value.size(0)}, a.value.size(1) - 1, kInt64);
        return made(cross_entropy(a.value, ids), [&] {
          return most(a.bound, 1).mean() * 2.0 +
                 size_of(log_softmax(wide(a.value), 1)).max() * kSumOf32;
        });
      }
      case 30:
        return moved(a, [](const Tensor& t) { return t.reshape({-1}); });
      default: {
        if (a.value.dim() != 1 || a.value.size(0) % kWidth) return {};
        return moved(a, [](const Tensor& t) { return t.reshape({-1, kWidth}); });
      }
    }
  }

  static bool broadcasts_into(const Tensor& x, const Tensor& y) {
    for (int64_t d = 1; d <= y.dim(); ++d) {
      if (d > x.dim() || (y.size(-d) != x.size(-d) && y.size(-d) != 1)) return false;
    }
    return true;
  }
  static bool broadcasts(const Tensor& x, const Tensor& y) {
    for (int64_t d = 1; d <= std::min(x.dim(), y.dim()); ++d) {
      const int64_t p = x.size(-d), q = y.size(-d);
      if (p != q && p != 1 && q != 1) return false;
    }
    return true;
  }

  std::mt19937 random_;
  Tensor x_;
  DType dtype_;
  std::vector<Tensor> leaves_;
  bool bounds_ = true;
  std::vector<Op> ops_;
  std::vector<size_t> picks_;
  std::vector<Bounded> results_;
};

}  // namespace

TEST_CASE("pitfall A13: fast numerics: random programs stay within their rounding bounds") {
  test::TempCache cache;
  const char *from = std::getenv("BRRR_FUZZ_SEED"), *count = std::getenv("BRRR_FUZZ_PACKS");
  const int first = from ? std::atoi(from) : 0;
  const int packs = count ? std::atoi(count) : test::random_cases(4, 500);
  constexpr int kAtOnce = 4;  // Programs per step.
  int apart = 0, results = 0;
  double nearest = 0;
  for (int pack = 0; pack < packs; ++pack) {
    CAPTURE(first + pack);
    manual_seed(static_cast<uint64_t>(first + pack));
    const Tensor x = randn({kRows, kWidth});
    std::vector<Program> programs;
    for (int k = 0; k < kAtOnce; ++k) {
      programs.emplace_back(static_cast<unsigned>((first + pack) * kAtOnce + k), x);
    }
    auto s = step(
        [&](const Tensor& in) {
          std::vector<Tensor> all;
          for (Program& p : programs) {
            for (const Tensor& t : p(in)) all.push_back(t);
          }
          return all;
        },
        {.numerics = Numerics::Fast, .build_at_first_call = true});
    const std::vector<Tensor> fast = s(x);
    CHECK(s.stats().fallbacks == 0);
    size_t at = 0;
    for (int k = 0; k < kAtOnce; ++k) {
      CAPTURE(k);
      for (const Bounded& strict : programs[static_cast<size_t>(k)].expected()) {
        const Tensor error = abs(wide(fast[at++]) - wide(strict.value));
        CHECK_MESSAGE((error <= strict.bound).all().item<bool>(), "result ", at);
        apart += largest(error) > 0;
        ++results;
        nearest = std::max(nearest, largest(error / (strict.bound + 1e-30)));
      }
    }
  }
  MESSAGE((packs * kAtOnce) << " programs: " << apart << " of " << results
                            << " results differ, the most by " << nearest << " of its bound");
  CHECK(apart > results / 8);  // Fast differs from Strict,
  CHECK(nearest > 0.125);      // and the bound is tight enough to be broken.
}

TEST_CASE("fast numerics: with a memory budget the largest element still gets the gradient") {
  test::TempCache cache;
  manual_seed(1);
  const Tensor x = randn({64, 64}).to(kBFloat16).set_requires_grad();
  const Tensor w = randn({64, 8}).to(kBFloat16);
  for (const int64_t d : {0, 1}) {
    CAPTURE(d);
    auto s = step(
        [&] {
          x.set_grad({});
          matmul(tanh(x * 0.5).max({d}).view({1, -1}), w).sum().backward();
        },
        {.numerics = Numerics::Fast, .build_at_first_call = true, .memory_budget = 0.1});
    s();
    CHECK(std::isfinite(x.grad().sum().item<float>()));
    CHECK((x.grad() != 0.0).any({d}).all().item<bool>());
  }
}
