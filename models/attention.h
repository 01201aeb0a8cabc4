#pragma once
// Causal self-attention with several heads, over a whole sequence or one token at a time.

#include "models/layers.h"

namespace brrr::models {

struct SelfAttentionOptions {
  int64_t width;  ///< Model width; must be a multiple of `heads`.
  int64_t heads;
  double dropout = 0.0;  ///< On the attention weights and on the result.
  bool bias = true;      ///< In both projections.
  bool rotary = false;   ///< Rotary position embedding of queries and keys (Su et al., 2021).
};

/// One layer's key-value cache: keys and values [batch, heads, block, width / heads].
struct LayerCache {
  Tensor keys, values;
};

/// A token's position in a cache of `block` slots, as tensors, so that one recording of the step
/// serves every position. Shared by all layers.
struct CachePosition {
  Tensor position;  ///< int64 [1].
  Tensor slot;      ///< Bool [block, 1]: true for the slot that receives the token's key and value.
  Tensor seen;      ///< Bool [1, block]: the attention mask, true for the slots up to `position`.
};

/// Each token attends to itself and to those before it (Vaswani et al., 2017):
/// [batch, time, width] -> the same. "c_attn" computes queries, keys and values in one matrix
/// product, "c_proj" mixes the heads.
class CausalSelfAttention : public Module {
 public:
  explicit CausalSelfAttention(const SelfAttentionOptions& options);
  Tensor forward(const Tensor& x) override;
  /// One token [batch, 1, width] after those in the cache; writes its key and value there.
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
