#include "models/gpt.h"

#include <cmath>

#include "core/check.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/nn_ops.h"
#include "ops/pointwise_ops.h"
#include "ops/view_ops.h"

namespace brrr::models {

namespace {

void check_choice(const char* option, const std::string& value, const char* a, const char* b) {
  BRRR_CHECK(value == a || value == b, "GPT: unknown {} \"{}\"; known are {} and {}", option, value,
             a, b);
}

const GPTOptions& checked(const GPTOptions& o) {
  BRRR_CHECK(o.vocab > 0 && o.block > 0 && o.layers > 0 && o.heads > 0 && o.width > 0,
             "GPT: all sizes must be positive, got vocab {}, block {}, layers {}, heads {}, width "
             "{}",
             o.vocab, o.block, o.layers, o.heads, o.width);
  BRRR_CHECK(o.width % o.heads == 0,
             "GPT: a width of {} does not divide among {} heads; make it a multiple of them",
             o.width, o.heads);
  BRRR_CHECK(o.dropout >= 0 && o.dropout <= 1, "GPT: dropout is a probability in [0, 1], got {}",
             o.dropout);
  check_choice("positions", o.positions, "learned", "rotary");
  check_choice("activation", o.activation, "gelu", "swiglu");
  check_choice("norm", o.norm, "layer", "rms");
  return o;
}

std::unique_ptr<Module> make_norm(const GPTOptions& o) {
  if (o.norm == "rms") return std::make_unique<RMSNorm>(o.width);
  return std::make_unique<LayerNorm>(o.width, 1e-5, o.bias);
}

void check_ids(const char* what, const Tensor& ids, int64_t most) {
  BRRR_CHECK(ids.defined() && ids.dtype() == kInt64 && ids.dim() == 2,
             "GPT: {} must be int64 [batch, time], got {}", what, describe(ids));
  BRRR_CHECK(ids.size(1) > 0, "GPT: {} {} hold no token; give at least one", what, describe(ids));
  BRRR_CHECK(ids.size(1) <= most, "GPT: {} {} are longer than the context of {}; crop them", what,
             describe(ids), most);
}

}  // namespace

// --- the parts -----------------------------------------------------------------------------------

FeedForward::FeedForward(const GPTOptions& o)
    : gated_(o.activation == "swiglu"),
      hidden_(gated_ ? (8 * o.width / 3 + 7) / 8 * 8 : 4 * o.width),
      c_fc_(o.width, gated_ ? 2 * hidden_ : hidden_, o.bias),
      c_proj_(hidden_, o.width, o.bias),
      dropout_(o.dropout) {
  register_module("c_fc", c_fc_);
  register_module("c_proj", c_proj_);
  register_module("dropout", dropout_);
}

Tensor FeedForward::forward(const Tensor& x) {
  const Tensor h = c_fc_(x);
  if (!gated_) return dropout_(c_proj_(gelu(h, "tanh")));
  IntList sizes = h.sizes();
  sizes[sizes.size() - 1] = 2;
  sizes.push_back(hidden_);
  const auto parts = unbind(h.view(sizes), -2);
  return dropout_(c_proj_(silu(parts[0]) * parts[1]));
}

Block::Block(const GPTOptions& o)
    : ln_1_(make_norm(o)),
      ln_2_(make_norm(o)),
      attn_({.width = o.width,
             .heads = o.heads,
             .dropout = o.dropout,
             .bias = o.bias,
             .rotary = o.positions == "rotary"}),
      mlp_(o) {
  register_module("ln_1", *ln_1_);
  register_module("attn", attn_);
  register_module("ln_2", *ln_2_);
  register_module("mlp", mlp_);
}

template <class F> Tensor Block::run(const Tensor& x, const F& attend) {
  const Tensor h = x + attend((*ln_1_)(x));
  return h + mlp_((*ln_2_)(h));
}

Tensor Block::forward(const Tensor& x) {
  return run(x, [&](const Tensor& y) { return attn_(y); });
}

Tensor Block::forward(const Tensor& x, const LayerCache& cache, const CachePosition& at) {
  return run(x, [&](const Tensor& y) { return attn_.forward(y, cache, at); });
}

Tensor GPT::Head::forward(const Tensor& x) { return linear(x, weight); }

// --- the model -----------------------------------------------------------------------------------

GPT::GPT(const GPTOptions& o)
    : options_(checked(o)),
      wte_(o.vocab, o.width),
      drop_(o.dropout),
      ln_f_(make_norm(o)),
      lm_head_(o.tie_weights ? wte_.weight : empty({o.vocab, o.width}), o.tie_weights) {
  register_module("wte", wte_);
  if (o.positions == "learned") {
    wpe_ = std::make_unique<Embedding>(o.block, o.width);
    register_module("wpe", *wpe_);
  }
  register_module("drop", drop_);
  for (int64_t i = 0; i < o.layers; ++i) blocks_.push_back(&h_.add<Block>(o));
  register_module("h", h_);
  register_module("ln_f", *ln_f_);
  register_module("lm_head", lm_head_);
  // Residual projections as in section 2.3 of the paper; 0.02 elsewhere as in Hugging Face's
  // transformers (OpenAI's own code initialises positions with 0.01). Norm weights stay 1.
  NoGradGuard guard;
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(o.layers));
  for (const auto& [name, p] : named_parameters()) {
    if (p.dim() == 2) {
      p.copy_(randn(p.sizes()) * (name.ends_with("c_proj.weight") ? residual : 0.02));
    } else if (name.ends_with(".bias")) {
      p.zero_();
    }
  }
}

Tensor GPT::forward(const Tensor& ids) {
  check_ids("ids", ids, options_.block);
  Tensor x = wte_(ids);
  if (wpe_) {
    const int64_t time = ids.size(1);
    // For the full table use no view: the gradient of a view would allocate another table.
    x = x + (time == options_.block ? wpe_->weight : wpe_->weight.narrow(0, 0, time));
  }
  return lm_head_((*ln_f_)(h_(drop_(x))));
}

Tensor GPT::loss(const Tensor& ids, const Tensor& targets) {
  check_ids("targets", targets, options_.block);
  BRRR_CHECK(ids.defined() && ids.sizes() == targets.sizes(),
             "GPT: ids {} and targets {} must have one shape: a target for each token",
             describe(ids), describe(targets));
  return cross_entropy(forward(ids).view({-1, options_.vocab}), targets.reshape({-1}));
}

KeyValueCache GPT::make_cache(int64_t batch) const {
  BRRR_CHECK(batch > 0, "GPT: a cache for {} sequences; give at least 1", batch);
  const Tensor& w = wte_.weight;
  const IntList sizes = {batch, options_.heads, options_.block, options_.width / options_.heads};
  KeyValueCache cache;
  for (int64_t i = 0; i < options_.layers; ++i) {
    cache.layers.push_back(
        {zeros(sizes, w.dtype(), w.device()), zeros(sizes, w.dtype(), w.device())});
  }
  cache.slots = arange(options_.block, w.device());
  return cache;
}

Tensor GPT::forward(const Tensor& ids, const Tensor& position, const KeyValueCache& cache) {
  check_ids("ids", ids, 1);
  BRRR_CHECK(position.defined() && position.dtype() == kInt64 && position.sizes() == IntList{1},
             "GPT: position must be int64 [1], got {}", describe(position));
  BRRR_CHECK(cache.layers.size() == blocks_.size(),
             "GPT: the cache has {} layers, the model {}; make it with make_cache",
             cache.layers.size(), blocks_.size());
  BRRR_CHECK(cache.layers[0].keys.size(0) == ids.size(0),
             "GPT: ids {} for a cache of {} sequences; make one with make_cache({})", describe(ids),
             cache.layers[0].keys.size(0), ids.size(0));
  const NoGradGuard guard;                                // Otherwise the cache would grow a tape.
  const Tensor slot = one_hot(position, options_.block);  // Throws if position is out of range.
  const CachePosition at{position, slot.t(), (cache.slots <= position).unsqueeze(0)};
  Tensor x = wte_(ids);
  if (wpe_) x = x + (*wpe_)(position);
  x = drop_(x);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->forward(x, cache.layers[i], at);
  return lm_head_((*ln_f_)(x)).select(1, 0);
}

}  // namespace brrr::models
