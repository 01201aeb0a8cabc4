#pragma once

// The benchmarks' MLP and GPT in libtorch's C++ API, with brrr's names for the parameters.

#include <limits>

#include "tests/bench/peer_gpt.h"
#include "tests/bench/peer_torch.h"

namespace brrr::bench {

namespace nn = torch::nn;

struct TorchModel : nn::Module {
  virtual torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) = 0;
};

struct TorchMlp : TorchModel {
  std::vector<nn::Linear> layers;

  explicit TorchMlp(const std::vector<std::int64_t>& sizes) {
    for (std::size_t l = 1; l < sizes.size(); ++l) {
      layers.push_back(
          register_module("fc" + std::to_string(l), nn::Linear(sizes[l - 1], sizes[l])));
    }
  }
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) override {
    torch::Tensor h = layers.front()(x);
    for (std::size_t l = 1; l < layers.size(); ++l) h = layers[l](torch::relu(h));
    return nn::functional::cross_entropy(h, y);
  }
};

struct TorchAttentionImpl : nn::Module {
  std::int64_t heads;
  nn::Linear c_attn, c_proj;
  torch::Tensor mask;  // Additive causal mask: 0 for visible keys, -inf for others.

  explicit TorchAttentionImpl(const GptSizes& s)
      : heads(s.heads),
        c_attn(register_module("c_attn", nn::Linear(s.width, 3 * s.width))),
        c_proj(register_module("c_proj", nn::Linear(s.width, s.width))),
        mask(torch::full({s.block, s.block}, -std::numeric_limits<float>::infinity()).triu(1)) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t b = x.size(0), t = x.size(1), d = x.size(2) / heads;
    const auto qkv = c_attn(x).view({b, t, 3, heads, d});
#if TORCH_VERSION_MAJOR >= 2
    const auto parts = qkv.unbind(2);
    const auto y = torch::scaled_dot_product_attention(
        parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2),
        /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
#else
    const auto parts = qkv.permute({2, 0, 3, 1, 4}).reshape({3, b * heads, t, d}).unbind(0);
    // baddbmm adds the mask within the product.
    const auto scores = torch::baddbmm(mask, parts[0], parts[1].transpose(1, 2), 1,
                                       1 / std::sqrt(static_cast<double>(d)));
    const auto y = torch::bmm(scores.softmax(-1), parts[2]).view({b, heads, t, d});
#endif
    return c_proj(y.transpose(1, 2).reshape({b, t, heads * d}));
  }
};
TORCH_MODULE(TorchAttention);

struct TorchFeedForwardImpl : nn::Module {
  nn::Linear c_fc, c_proj;
  const char* gelu;

  TorchFeedForwardImpl(std::int64_t width, const char* form)
      : c_fc(register_module("c_fc", nn::Linear(width, 4 * width))),
        c_proj(register_module("c_proj", nn::Linear(4 * width, width))),
        gelu(form) {}
  torch::Tensor forward(const torch::Tensor& x) { return c_proj(torch::gelu(c_fc(x), gelu)); }
};
TORCH_MODULE(TorchFeedForward);

inline nn::LayerNorm layer_norm(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions({width}));
}

struct TorchBlockImpl : nn::Module {
  nn::LayerNorm ln_1;
  TorchAttention attn;
  nn::LayerNorm ln_2;
  TorchFeedForward mlp;

  TorchBlockImpl(const GptSizes& s, const char* gelu)
      : ln_1(register_module("ln_1", layer_norm(s.width))),
        attn(register_module("attn", TorchAttention(s))),
        ln_2(register_module("ln_2", layer_norm(s.width))),
        mlp(register_module("mlp", TorchFeedForward(s.width, gelu))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = x + attn(ln_1(x));
    return h + mlp(ln_2(h));
  }
};
TORCH_MODULE(TorchBlock);

struct TorchGpt : TorchModel {
  nn::Embedding wte, wpe;
  nn::ModuleList h;
  nn::LayerNorm ln_f{nullptr};

  // `gelu` as torch::gelu's argument: "tanh", as in brrr and GPT-2, or "none".
  explicit TorchGpt(const GptSizes& s, const char* gelu = "tanh")
      : wte(register_module("wte", nn::Embedding(s.vocab, s.width))),
        wpe(register_module("wpe", nn::Embedding(s.block, s.width))) {
    for (std::int64_t l = 0; l < s.layers; ++l) h->push_back(TorchBlock(s, gelu));
    register_module("h", h);
    ln_f = register_module("ln_f", layer_norm(s.width));
  }
  torch::Tensor loss(const torch::Tensor& ids, const torch::Tensor& targets) override {
    auto x = wte(ids) + wpe->weight.narrow(0, 0, ids.size(1));
    for (const auto& block : *h) x = block->as<TorchBlock>()->forward(x);
    const auto logits = torch::linear(ln_f(x), wte->weight);
    return nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), targets.view({-1}));
  }
};

}  // namespace brrr::bench
