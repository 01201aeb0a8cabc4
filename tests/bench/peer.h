#pragma once

// The benchmarks' MLP: batches and first weights, the same for brrr, the floor and the peers, so
// that their losses can be compared; and the random generator that they share.

#include <cmath>
#include <cstdint>
#include <vector>

namespace brrr::bench {

inline const std::vector<std::int64_t> mlp_sizes = {784, 256, 128, 10};
inline constexpr int num_batches = 16;  // batches rotate: a single one would stay in the cache
inline constexpr double sgd_lr = 1e-2;
inline constexpr double adamw_lr = 1e-3;
inline constexpr double adamw_weight_decay = 1e-2;

// Uniform floats in [-bound, bound) from a 64-bit linear congruential generator (Knuth's MMIX
// constants): the same on every machine and in every language a peer may be written in.
class PeerRandom {
 public:
  explicit PeerRandom(std::uint64_t seed) : state_(seed) {}
  std::uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  float uniform(float bound) { return (static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f) * bound; }
  void fill(float* p, std::int64_t n, float bound) {
    for (std::int64_t i = 0; i < n; ++i) p[i] = uniform(bound);
  }

 private:
  std::uint64_t state_;
};

struct MlpBatches {
  std::vector<std::vector<float>> x;         // num_batches of [batch, sizes.front()]
  std::vector<std::vector<std::int64_t>> y;  // num_batches of [batch]
};

inline MlpBatches make_mlp_batches(std::int64_t batch) {
  PeerRandom random(1);
  MlpBatches data;
  for (int b = 0; b < num_batches; ++b) {
    data.x.emplace_back(static_cast<std::size_t>(batch * mlp_sizes.front()));
    random.fill(data.x.back().data(), batch * mlp_sizes.front(), 1.0f);
    data.y.emplace_back(static_cast<std::size_t>(batch));
    for (auto& label : data.y.back()) {
      label = random.bits() % static_cast<std::uint32_t>(mlp_sizes.back());
    }
  }
  return data;
}

// Weight [out, in] and bias [out] of one layer, uniform in +-1/sqrt(in) as torch.nn.Linear's are.
inline void init_mlp_layer(std::size_t layer, float* weight, float* bias) {
  const std::int64_t in = mlp_sizes.at(layer), out = mlp_sizes.at(layer + 1);
  const float bound = 1.0f / std::sqrt(static_cast<float>(in));
  PeerRandom random(100 + layer);
  random.fill(weight, in * out, bound);
  random.fill(bias, out, bound);
}

}  // namespace brrr::bench
