#pragma once
// The GPT: a decoder-only transformer (Radford et al., "Language models are unsupervised multitask
// learners", 2019), with options from its successors: rotary positions, SwiGLU, RMSNorm.

#include "models/attention.h"

namespace brrr::models {

/// The defaults are the small GPT-2.
struct GPTOptions {
  int64_t vocab = 50257;
  int64_t block = 1024;  ///< The longest context.
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t width = 768;
  double dropout = 0.0;  ///< On embeddings, attention weights and each sublayer's result.
  std::string positions = "learned";  ///< learned, or rotary (Su et al., 2021).
  std::string activation = "gelu";    ///< gelu (its tanh form), or swiglu (Shazeer, 2020).
  std::string norm = "layer";         ///< layer, or rms (Zhang and Sennrich, 2019).
  bool bias = true;                   ///< In linear layers and layer norms.
  bool tie_weights = true;            ///< The output layer's weight is the token embedding.
};

/// "c_fc", the activation, "c_proj", with a hidden width of 4 * width. SwiGLU uses two thirds of
/// that, rounded up to a multiple of 8, so that its three matrices cost as much as the two of gelu;
/// the gate is the first half of c_fc.
class FeedForward : public Module {
 public:
  explicit FeedForward(const GPTOptions& options);
  Tensor forward(const Tensor& x) override;

 private:
  bool gated_;
  int64_t hidden_;
  Linear c_fc_, c_proj_;
  Dropout dropout_;
};

/// x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class Block : public Module {
 public:
  explicit Block(const GPTOptions& options);
  Tensor forward(const Tensor& x) override;
  Tensor forward(const Tensor& x, const LayerCache& cache, const CachePosition& at);

 private:
  template <class F> Tensor run(const Tensor& x, const F& attend);
  std::unique_ptr<Module> ln_1_, ln_2_;
  CausalSelfAttention attn_;
  FeedForward mlp_;
};

/// Keys and values of all layers for up to `block` tokens of `batch` sequences.
struct KeyValueCache {
  std::vector<LayerCache> layers;
  Tensor slots;  ///< int64 [block]: 0, 1, ..., block - 1.
};

/// Token ids int64 [batch, time] -> logits [batch, time, vocab]. Parameters have GPT-2's names:
/// wte, wpe, h.0.ln_1, h.0.attn.c_attn, ..., ln_f, lm_head. A tied lm_head has no weight of its
/// own: wte.weight is the one parameter, in checkpoints too.
///
/// Initialised like GPT-2: weights normal with standard deviation 0.02, the projections into the
/// residual stream 0.02 / sqrt(2 * layers), biases 0.
class GPT : public Module {
 public:
  /// Throws unless all sizes are positive and fit each other and all names are known.
  explicit GPT(const GPTOptions& options = {});
  /// Throws unless ids is int64 [batch, time], 1 <= time <= block and every id is in [0, vocab).
  Tensor forward(const Tensor& ids) override;
  /// Mean cross-entropy of the logits of `ids` against `targets`, int64 of the same shape; 0-d.
  Tensor loss(const Tensor& ids, const Tensor& targets);

  /// An empty cache, allocated in full.
  KeyValueCache make_cache(int64_t batch = 1) const;
  /// One more token: ids int64 [batch, 1] at `position`, int64 [1] in [0, block), after those in
  /// the cache -> logits [batch, vocab], without gradients. The contents of later slots are masked.
  /// Throws if a position or an id is out of range.
  Tensor forward(const Tensor& ids, const Tensor& position, const KeyValueCache& cache);

  const GPTOptions& options() const { return options_; }

 private:
  struct Head : Module {
    Head(const Tensor& w, bool tied) : weight(tied ? w : register_parameter("weight", w)) {}
    Tensor forward(const Tensor& x) override;
    Tensor weight;
  };

  GPTOptions options_;
  Embedding wte_;
  std::unique_ptr<Embedding> wpe_;  // Null with rotary positions.
  Dropout drop_;
  Sequential h_;
  std::vector<Block*> blocks_;  // Owned by h_.
  std::unique_ptr<Module> ln_f_;
  Head lm_head_;
};

}  // namespace brrr::models
