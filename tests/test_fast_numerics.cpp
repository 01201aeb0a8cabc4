// Numerics::Fast in random programs: float32 and float64 keep Strict's bits (test_graph_fuzz.cpp);
// chains of 16-bit floats stay within the tolerance that graph/step.h publishes.
// BRRR_LONG_TESTS=1 tries many more.
#include <doctest/doctest.h>

#include <brrr/brrr.h>

#include <algorithm>
#include <random>

#include "tests/sanitizer.h"

using namespace brrr;

namespace {

/// A chain v = op(v, leaf) of ops that pass on an error of v at most as it is, so that what n
/// roundings add up to is n of the largest.
class Chain {
 public:
  Chain(unsigned seed, DType dtype) : seed_(seed), dtype_(dtype) {
    std::mt19937 random(seed);
    for (int k = 0; k < 3; ++k) {
      leaves_.push_back((rand(shape(random)) * 2.0 - 1.0).to(dtype));
    }
    mix_ = (softmax(randn({8, 8}), 0) * 0.5).to(dtype);
    length_ = 3 + static_cast<int>(random() % 14);
  }

  /// Every value of the chain if `all`, else the last and one between.
  std::vector<Tensor> run(const Tensor& x, bool all) const {
    std::mt19937 random(seed_ + 1);
    std::vector<Tensor> values = {x.to(dtype_)};
    for (int k = 0; k < length_; ++k) {
      const Tensor& leaf = leaves_[random() % leaves_.size()];
      values.push_back(next(static_cast<int>(random() % 16), values.back(), leaf));
    }
    if (all) return values;
    return {values.back(), values[random() % values.size()]};
  }
  int length() const { return length_; }

 private:
  static IntList shape(std::mt19937& random) {
    static const IntList all[] = {{6, 8}, {8}, {6, 1}, {}};
    return all[random() % 4];
  }
  Tensor next(int op, const Tensor& v, const Tensor& leaf) const {
    switch (op) {
      case 0:
      case 1:
        return v + leaf;
      case 2:
        return v - leaf;
      case 3:
      case 4:
        return v * leaf;
      case 5:
        return tanh(v);
      case 6:
        return sigmoid(v);
      case 7:
        return relu(v);
      case 8:
        return abs(v) * -0.75;
      case 9:
        return clamp(v, -0.5, 0.75);
      case 10:
        return maximum(v, leaf);
      case 11:
        return where(leaf > 0, v, leaf);
      case 12:
        return softmax(v, 1);
      case 13:
        return mean(v, {1}, true) * 0.5 + v * 0.5;
      case 14:
        return matmul(v, mix_);
      default:
        return sin(v);
    }
  }

  unsigned seed_;
  DType dtype_;
  std::vector<Tensor> leaves_;
  Tensor mix_;
  int length_;
};

double largest(const Tensor& t) { return abs(t.to(kFloat64)).max().item<double>(); }

}  // namespace

TEST_CASE("fast numerics: random chains stay within a rounding an op of strict") {
  int apart = 0;
  const int chains = test::random_cases(12, 1000);
  for (int seed = 0; seed < chains; ++seed) {
    for (const DType dtype : {kBFloat16, kFloat16}) {
      CAPTURE(seed);
      manual_seed(static_cast<uint64_t>(seed));
      const Chain chain(static_cast<unsigned>(seed), dtype);
      const Tensor x = randn({6, 8});
      const auto run = [&](Numerics numerics) {
        auto s = step([&](const Tensor& in) { return chain.run(in, false); },
                      {.numerics = numerics, .build_at_first_call = true});
        s(x);
        return s(x);
      };
      double top = 0;
      for (const Tensor& v : chain.run(x, true)) top = std::max(top, largest(v));
      // At most three ops a link of the chain, and the first cast.
      const double rounding = dtype == kBFloat16 ? 0x1p-8 : 0x1p-11;
      const double within = (3 * chain.length() + 1) * rounding * top;
      const std::vector<Tensor> strict = run(Numerics::Strict), fast = run(Numerics::Fast);
      for (size_t k = 0; k < strict.size(); ++k) {
        const double error = largest(fast[k].to(kFloat64) - strict[k].to(kFloat64));
        CHECK(error <= within);
        apart += error > 0;
      }
    }
  }
  CHECK(apart > chains / 2);  // The mode is not Strict by another name.
}
