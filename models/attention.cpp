#include "models/attention.h"

#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::models {

static SelfAttentionOptions checked(const SelfAttentionOptions& o) {
  BRRR_CHECK(o.width > 0 && o.heads > 0 && o.width % o.heads == 0,
             "CausalSelfAttention: a width of {} does not divide among {} heads; make it a "
             "multiple of them",
             o.width, o.heads);
  BRRR_CHECK(!o.rotary || o.width / o.heads % 2 == 0,
             "CausalSelfAttention: rotary positions turn pairs, but a head is {} wide (width {}, "
             "{} heads); make that even",
             o.width / o.heads, o.width, o.heads);
  return o;
}

CausalSelfAttention::CausalSelfAttention(const SelfAttentionOptions& o)
    : options_(checked(o)),
      c_attn_(o.width, numel_of({3, o.width}, "CausalSelfAttention"), o.bias),
      c_proj_(o.width, o.width, o.bias),
      resid_dropout_(o.dropout) {
  register_module("c_attn", c_attn_);
  register_module("c_proj", c_proj_);
  register_module("resid_dropout", resid_dropout_);
}

// Queries, keys and values [batch, heads, time, width / heads]: views of one matrix product.
CausalSelfAttention::Heads CausalSelfAttention::project(const Tensor& x, const Tensor& positions) {
  BRRR_CHECK(x.dim() == 3 && x.size(2) == options_.width,
             "CausalSelfAttention: takes [batch, time, {}], got {}", options_.width, describe(x));
  const int64_t heads = options_.heads, width = options_.width / heads;
  const Tensor all = c_attn_(x).view({x.size(0), x.size(1), 3 * heads, width});
  std::vector<Tensor> h;
  if (options_.rotary) {
    const auto parts = all.split(2 * heads, 2);  // One rotation for queries and keys.
    h = rotary_embedding(parts[0].transpose(1, 2), positions).transpose(1, 2).chunk(2, 2);
    h.push_back(parts[1]);
  } else {
    h = all.chunk(3, 2);
  }
  return {h[0].transpose(1, 2), h[1].transpose(1, 2), h[2].transpose(1, 2)};
}

// Concatenates the heads of each token and projects them.
Tensor CausalSelfAttention::merge(const Tensor& y) {
  const IntList s = y.sizes();
  return resid_dropout_(c_proj_(y.transpose(1, 2).reshape({s[0], s[2], options_.width})));
}

Tensor CausalSelfAttention::forward(const Tensor& x) {
  const Tensor positions = options_.rotary ? arange(x.size(1), x.device()) : Tensor();
  const Heads h = project(x, positions);
  return merge(scaled_dot_product_attention(
      h.q, h.k, h.v, {.causal = true, .dropout = options_.dropout, .training = is_training()}));
}

Tensor CausalSelfAttention::forward(const Tensor& x, const LayerCache& cache,
                                    const CachePosition& at) {
  const Heads h = project(x, at.position);
  cache.keys.copy_(where(at.slot, h.k, cache.keys));
  cache.values.copy_(where(at.slot, h.v, cache.values));
  return merge(scaled_dot_product_attention(
      h.q, cache.keys, cache.values,
      {.mask = at.seen, .dropout = options_.dropout, .training = is_training()}));
}

}  // namespace brrr::models
