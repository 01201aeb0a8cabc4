#pragma once
// Composite ops of neural networks: each is a decomposition into other ops, with a fast kernel that
// tests hold to it.

#include "core/tensor.h"

namespace brrr {

Tensor softmax(const Tensor& x, int64_t dim);      ///< exp(x - max) / sum (floats only)
Tensor log_softmax(const Tensor& x, int64_t dim);  ///< x - logsumexp(x)
/// (x - mean) / sqrt(var + eps) * weight + bias over the trailing dims `normalized` (Ba et al.,
/// 2016); weight and bias have that shape or are undefined.
Tensor layer_norm(const Tensor& x, const IntList& normalized, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019).
Tensor rms_norm(const Tensor& x, const IntList& normalized, const Tensor& weight = {},
                double eps = 1e-5);
struct AttentionOptions {
  bool causal = false;   ///< Query i sees keys 0 .. i only (counted from the start if L != S).
  Tensor mask = {};      ///< Bool (true: takes part) or floating (added to the scores), or none.
  double scale = 0;      ///< Of the scores; 0 means 1 / sqrt(D).
  double dropout = 0;    ///< Probability with which a weight is dropped...
  bool training = true;  ///< ...while training.
};
/// softmax(q k^T * scale + mask) v (Vaswani et al., 2017): q [.., L, D], k [.., S, D], v [.., S, E]
/// -> [.., L, E], all of one floating dtype; leading dims broadcast, the mask broadcasts to
/// [.., L, S]. Arguments mean what PyTorch's do; causal and mask together allow what both allow. A
/// query that may see no key gives zeros and has no gradient. What masked keys and values hold must
/// be finite. 16-bit floats are computed in float32 and rounded once.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});
/// Rotary position embedding (Su et al., "RoFormer", 2021): x [.., T, D] with D even, positions
/// int64 [T]. Elements i and i + D / 2 of a row (the halves of GPT-NeoX and of Llama in Hugging
/// Face) turn by the angle positions[t] * base^(-2i / D), which is computed in float64.
Tensor rotary_embedding(const Tensor& x, const Tensor& positions, double base = 10000.0);
/// What is made of a loss's parts: their mean or their sum, 0-d, or None: each of them stays.
enum class Reduction { Mean, Sum, None };
struct CrossEntropyOptions {
  int64_t ignore_index = -100;   ///< Rows with this id do not count, as if they were not there.
  double label_smoothing = 0.0;  ///< The share of each target spread over all classes, in [0, 1].
  Reduction reduction = Reduction::Mean;
};
/// -log softmax(logits)[i, ids[i]] of the rows whose id is not `ignore_index`: logits [n, classes],
/// ids int64 [n]. Their mean, 0-d, is NaN where there is no such row, and its gradient 0; with
/// Reduction::None the result is [n], 0 in the other rows. With smoothing e the targets are
/// (1 - e) one_hot(ids) + e / classes (Szegedy et al., "Rethinking the inception architecture",
/// 2016). Throws when any other id is out of range.
Tensor cross_entropy(const Tensor& logits, const Tensor& ids,
                     const CrossEntropyOptions& options = {});
/// (a - b)^2 of two tensors of one shape, reduced; of the dtype that both promote to.
Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::Mean);
/// Binary cross-entropy of sigmoid(x) against targets in [0, 1], reduced; of the dtype that both
/// promote to, float32 if that is no floating one.
Tensor bce_with_logits(const Tensor& x, const Tensor& targets,
                       Reduction reduction = Reduction::Mean);

}  // namespace brrr
