// The benchmark's floor is a valid comparison only if it does the whole step, correctly.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/bench/floor_mlp.h"
#include "tests/bench/peer.h"

namespace {

using brrr::bench::FloorHyper;
using brrr::bench::FloorMlp;
using brrr::bench::FloorOptimizer;
using brrr::bench::PeerRandom;

using Doubles = std::vector<double>;

// One layer's parameters in double, for the reference below.
struct Layer {
  Doubles weight, bias;
};

// The mean cross-entropy of the network in double, written as the definition says.
double reference_loss(const std::vector<std::int64_t>& sizes, const std::vector<Layer>& layers,
                      Doubles x, const std::vector<std::int64_t>& y) {
  const std::size_t batch = y.size();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto in = static_cast<std::size_t>(sizes[l]),
               out = static_cast<std::size_t>(sizes[l + 1]);
    Doubles z(batch * out);
    for (std::size_t r = 0; r < batch; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        double sum = layers[l].bias[o];
        for (std::size_t i = 0; i < in; ++i) sum += x[r * in + i] * layers[l].weight[o * in + i];
        z[r * out + o] = l + 1 < layers.size() ? std::fmax(sum, 0.0) : sum;
      }
    }
    x = z;
  }
  const auto classes = static_cast<std::size_t>(sizes.back());
  double loss = 0.0;
  for (std::size_t r = 0; r < batch; ++r) {
    double sum = 0.0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(x[r * classes + c]);
    loss += std::log(sum) - x[r * classes + static_cast<std::size_t>(y[r])];
  }
  return loss / static_cast<double>(batch);
}

struct Problem {
  std::vector<std::int64_t> sizes = {37, 70, 21, 5};  // vectors, single vectors and tails
  std::int64_t batch = 9;
  std::vector<float> x;
  std::vector<std::int64_t> y;

  Problem() : x(static_cast<std::size_t>(9 * 37)), y(9) {
    PeerRandom random(7);
    random.fill(x.data(), 9 * 37, 1.0f);
    for (auto& label : y) label = random.bits() % 5;
  }

  FloorMlp make(FloorOptimizer optimizer, FloorHyper hyper = {}) const {
    FloorMlp mlp(sizes, batch, optimizer, hyper);
    PeerRandom random(3);
    for (std::size_t l = 0; l < mlp.num_layers(); ++l) {
      random.fill(mlp.weight(l), mlp.fan_in(l) * mlp.fan_out(l), 0.3f);
      random.fill(mlp.bias(l), mlp.fan_out(l), 0.3f);
    }
    return mlp;
  }
};

std::vector<Layer> to_double(FloorMlp& mlp) {
  std::vector<Layer> layers;
  for (std::size_t l = 0; l < mlp.num_layers(); ++l) {
    const std::int64_t out = mlp.fan_out(l), n = mlp.fan_in(l) * out;
    layers.push_back(
        {Doubles(mlp.weight(l), mlp.weight(l) + n), Doubles(mlp.bias(l), mlp.bias(l) + out)});
  }
  return layers;
}

}  // namespace

TEST_CASE("floor: loss and gradients agree with finite differences in double") {
  const Problem p;
  FloorMlp mlp = p.make(FloorOptimizer::Sgd);
  std::vector<Layer> layers = to_double(mlp);
  const Doubles x(p.x.begin(), p.x.end());
  const float loss = mlp.forward_backward(p.x.data(), p.y.data());
  CHECK(loss == doctest::Approx(reference_loss(p.sizes, layers, x, p.y)).epsilon(1e-6));

  const auto check = [&](Doubles& values, const float* grad, std::size_t stride) {
    constexpr double h = 1e-6;
    for (std::size_t i = 0; i < values.size(); i += stride) {
      const double kept = values[i];
      values[i] = kept + h;
      const double above = reference_loss(p.sizes, layers, x, p.y);
      values[i] = kept - h;
      const double below = reference_loss(p.sizes, layers, x, p.y);
      values[i] = kept;
      CHECK(std::fabs(grad[i] - (above - below) / (2 * h)) < 2e-7);
    }
  };
  for (std::size_t l = 0; l < layers.size(); ++l) {
    check(layers[l].weight, mlp.weight_grad(l), 7);
    check(layers[l].bias, mlp.bias_grad(l), 1);
  }
}

TEST_CASE("floor: matrix products cut into blocks give the same gradients") {
  // Sizes beyond one block, with remainders in both directions; compared by a directional
  // derivative.
  const std::vector<std::int64_t> sizes = {330, 150, 70};
  const std::int64_t batch = 77;
  std::vector<float> x(static_cast<std::size_t>(batch * sizes[0]));
  std::vector<std::int64_t> y(static_cast<std::size_t>(batch));
  PeerRandom random(11);
  random.fill(x.data(), batch * sizes[0], 1.0f);
  for (auto& label : y) label = random.bits() % 70;
  FloorMlp mlp(sizes, batch, FloorOptimizer::Sgd);
  for (std::size_t l = 0; l < 2; ++l) random.fill(mlp.weight(l), sizes[l] * sizes[l + 1], 0.1f);
  const std::vector<Layer> layers = to_double(mlp);
  const Doubles xd(x.begin(), x.end());
  mlp.forward_backward(x.data(), y.data());

  std::vector<Layer> above = layers, below = layers;
  double expected = 0.0;
  constexpr double h = 1e-6;
  for (std::size_t l = 0; l < 2; ++l) {
    for (std::size_t i = 0; i < layers[l].weight.size(); ++i) {
      const double d = random.uniform(1.0f);
      above[l].weight[i] += h * d;
      below[l].weight[i] -= h * d;
      expected += d * mlp.weight_grad(l)[i];
    }
  }
  const double slope =
      (reference_loss(sizes, above, xd, y) - reference_loss(sizes, below, xd, y)) / (2 * h);
  CHECK(expected == doctest::Approx(slope).epsilon(1e-4));
}

TEST_CASE("floor: SGD moves every parameter by lr times its gradient") {
  const Problem p;
  FloorHyper hyper;
  hyper.lr = 0.25;
  FloorMlp mlp = p.make(FloorOptimizer::Sgd, hyper);
  const std::vector<Layer> before = to_double(mlp);
  mlp.step(p.x.data(), p.y.data());
  for (std::size_t l = 0; l < before.size(); ++l) {
    for (std::size_t i = 0; i < before[l].weight.size(); ++i) {
      const double expected = before[l].weight[i] - 0.25 * mlp.weight_grad(l)[i];
      REQUIRE(std::fabs(mlp.weight(l)[i] - expected) < 1e-7);
    }
    for (std::size_t i = 0; i < before[l].bias.size(); ++i) {
      const double expected = before[l].bias[i] - 0.25 * mlp.bias_grad(l)[i];
      REQUIRE(std::fabs(mlp.bias(l)[i] - expected) < 1e-7);
    }
  }
}

TEST_CASE("floor: three AdamW steps agree with a scalar reference in double") {
  const Problem p;
  const FloorHyper hyper{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1};
  FloorMlp mlp = p.make(FloorOptimizer::AdamW, hyper);
  std::vector<Layer> value = to_double(mlp), mean = value, square = value;
  for (auto* moments : {&mean, &square}) {
    for (Layer& layer : *moments) {
      layer.weight.assign(layer.weight.size(), 0.0);
      layer.bias.assign(layer.bias.size(), 0.0);
    }
  }
  const auto update = [&](Doubles& w, Doubles& m, Doubles& s, const float* grad, int t) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = grad[i];
      m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
      s[i] = hyper.beta2 * s[i] + (1 - hyper.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(hyper.beta1, t));
      const double s_hat = s[i] / (1 - std::pow(hyper.beta2, t));
      w[i] -= hyper.lr * (m_hat / (std::sqrt(s_hat) + hyper.eps) + hyper.weight_decay * w[i]);
    }
  };
  for (int t = 1; t <= 3; ++t) {
    mlp.step(p.x.data(), p.y.data());
    for (std::size_t l = 0; l < value.size(); ++l) {
      update(value[l].weight, mean[l].weight, square[l].weight, mlp.weight_grad(l), t);
      update(value[l].bias, mean[l].bias, square[l].bias, mlp.bias_grad(l), t);
      for (std::size_t i = 0; i < value[l].weight.size(); ++i) {
        REQUIRE(std::fabs(mlp.weight(l)[i] - value[l].weight[i]) < 1e-6);
      }
      for (std::size_t i = 0; i < value[l].bias.size(); ++i) {
        REQUIRE(std::fabs(mlp.bias(l)[i] - value[l].bias[i]) < 1e-6);
      }
    }
  }
}

TEST_CASE("floor: misuse throws and changes nothing") {
  CHECK_THROWS_AS(FloorMlp({4}, 1, FloorOptimizer::Sgd), std::invalid_argument);
  CHECK_THROWS_AS(FloorMlp({4, 0, 2}, 1, FloorOptimizer::Sgd), std::invalid_argument);
  CHECK_THROWS_AS(FloorMlp({4, 2}, 0, FloorOptimizer::Sgd), std::invalid_argument);
  FloorMlp mlp({4, 2}, 2, FloorOptimizer::Sgd);
  const std::vector<float> x(8, 1.0f);
  const std::vector<std::int64_t> y = {0, 2};
  CHECK_THROWS_AS(mlp.step(x.data(), y.data()), std::invalid_argument);
  CHECK(mlp.weight(0)[0] == 0.0f);
}
