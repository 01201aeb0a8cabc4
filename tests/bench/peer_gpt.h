#pragma once

// The GPT of the benchmarks: its sizes, batches and first weights, the same for brrr and the peer.

#include <algorithm>
#include <string_view>

#include "tests/bench/peer.h"

namespace brrr::bench {

// Learned positions, GELU in its tanh form, biases, tied weights, no dropout.
struct GptSizes {
  std::int64_t vocab = 65, block = 32, layers = 2, heads = 4, width = 64;
};
inline constexpr GptSizes gpt_sizes;

struct GptBatches {
  std::vector<std::vector<std::int64_t>> x, y;  // num_batches of [batch, block]: ids, next ids
};

// Each id is the previous one times 3 plus noise, so the model has something to learn.
inline GptBatches make_gpt_batches(std::int64_t batch) {
  PeerRandom random(2);
  GptBatches data;
  for (int b = 0; b < num_batches; ++b) {
    auto &x = data.x.emplace_back(), &y = data.y.emplace_back();
    for (std::int64_t row = 0; row < batch; ++row) {
      std::int64_t id = random.bits() % static_cast<std::uint32_t>(gpt_sizes.vocab);
      for (std::int64_t t = 0; t < gpt_sizes.block; ++t) {
        x.push_back(id);
        id = (3 * id + random.bits() % 4) % gpt_sizes.vocab;
        y.push_back(id);
      }
    }
  }
  return data;
}

// Parameter number `index` in the order wte, wpe, then layer by layer ln_1, c_attn, c_proj, ln_2,
// c_fc, c_proj, then ln_f: weights uniform with deviation 0.02, scales 1, biases 0.
inline void init_gpt_parameter(std::size_t index, std::string_view name, bool matrix, float* p,
                               std::int64_t n) {
  if (matrix) {
    PeerRandom random(200 + index);
    random.fill(p, n, 0.02f * std::sqrt(3.0f));
  } else {
    const bool bias = name.size() >= 4 && name.substr(name.size() - 4) == "bias";
    std::fill(p, p + n, bias ? 0.0f : 1.0f);
  }
}

}  // namespace brrr::bench
