#pragma once
// Causal self-attention with several heads, over a whole sequence or one token at a time.

#include "models/layers.h"

namespace brrr::models {

struct SelfAttentionOptions {
  int64_t width;         ///< Of a token.
  int64_t heads;         ///< They share the width evenly.
  double dropout = 0.0;  ///< Of the attention weights and of the result.
  bool bias = true;      ///< In both projections.
  bool rotary = false;   ///< Turns queries and keys by their positions (Su et al., 2021).
};

/// What one layer has seen of a sequence: keys and values [batch, heads, block, width / heads].
struct LayerCache {
  Tensor keys, values;
};

/// Where a token stands in a cache of `block` slots, as tensors: the recorded step is the same for
/// every position. One for all layers.
struct CachePosition {
  Tensor position;  ///< int64 [1].
  Tensor slot;      ///< Bool [block, 1]: the slot that the token's key and value go to.
  Tensor seen;      ///< Bool [1, block]: the slots up to it, which it may look at.
};

/// Each token looks at itself and at those before it (Vaswani et al., 2017):
/// [batch, time, width] -> the same. "c_attn" makes queries, keys and values in one product,
/// "c_proj" mixes the heads.
class CausalSelfAttention : public Module {
 public:
  explicit CausalSelfAttention(const SelfAttentionOptions& options);
  Tensor forward(const Tensor& x) override;
  /// One token [batch, 1, width] after those in the cache, which it joins.
  Tensor forward(const Tensor& x, const LayerCache& cache, const CachePosition& at);

 private:
  struct Heads {
    Tensor q, k, v;
  };
  Heads project(const Tensor& x, const Tensor& positions);
  Tensor merge(const Tensor& y);

  SelfAttentionOptions options_;
  Linear c_attn_, c_proj_;
  Dropout resid_dropout_;
};

}  // namespace brrr::models
