#pragma once
// Composite ops of neural networks: each is defined by a decomposition into other ops and has a
// fast kernel, which the tests compare with it.

#include "core/tensor.h"

namespace brrr {

Tensor softmax(const Tensor& x, int64_t dim);      ///< exp(x - max) / sum along dim (floats only)
Tensor log_softmax(const Tensor& x, int64_t dim);  ///< x - logsumexp(x) along dim (floats only)
/// (x - mean) / sqrt(var + eps) * weight + bias over the trailing dims `normalized` (Ba et al.,
/// 2016); weight and bias have that shape or are undefined.
Tensor layer_norm(const Tensor& x, const IntList& normalized, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019).
Tensor rms_norm(const Tensor& x, const IntList& normalized, const Tensor& weight = {},
                double eps = 1e-5);
struct AttentionOptions {
  bool causal = false;   ///< Query i attends to keys 0 .. i only (from the start if L != S).
  Tensor mask = {};      ///< Bool (true: attends) or floating (added to the scores), or undefined.
  double scale = 0;      ///< Factor of the scores; 0 means 1 / sqrt(D).
  double dropout = 0;    ///< Probability that a weight is dropped, in [0, 1].
  bool training = true;  ///< Whether dropout applies.
};
/// softmax(q k^T * scale + mask) v (Vaswani et al., 2017): q [.., L, D], k [.., S, D], v [.., S, E]
/// -> [.., L, E], all of one floating dtype; leading dims broadcast, the mask broadcasts to
/// [.., L, S]. Arguments are as in PyTorch; with causal and a mask, both must allow a key. A query
/// that may attend to no key gives zeros and has no gradient. Masked keys and values must be
/// finite. 16-bit floats are computed in float32 and rounded once.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});
/// Rotary position embedding (Su et al., "RoFormer", 2021): x [.., T, D] with D even, positions
/// int64 [T]. Elements i and i + D / 2 of a row (the layout of GPT-NeoX and of Llama in Hugging
/// Face) are rotated by the angle positions[t] * base^(-2i / D), which is computed in float64.
Tensor rotary_embedding(const Tensor& x, const Tensor& positions, double base = 10000.0);
/// How a loss's parts are reduced: to their mean or sum, 0-d, or, with None, not at all.
enum class Reduction { Mean, Sum, None };
struct CrossEntropyOptions {
  int64_t ignore_index = -100;   ///< Rows with this id are ignored, as if they were absent.
  double label_smoothing = 0.0;  ///< Part of each target spread over all classes, in [0, 1].
  Reduction reduction = Reduction::Mean;
};
/// -log softmax(logits)[i, ids[i]] of the rows whose id is not `ignore_index`: logits [n, classes],
/// ids int64 [n]. If there is no such row the mean, 0-d, is NaN and its gradient 0. With
/// Reduction::None the result is [n], 0 in ignored rows. With smoothing e the targets are
/// (1 - e) one_hot(ids) + e / classes (Szegedy et al., "Rethinking the inception architecture",
/// 2016). Throws if any other id is out of range.
Tensor cross_entropy(const Tensor& logits, const Tensor& ids,
                     const CrossEntropyOptions& options = {});
/// (a - b)^2 of two tensors of one shape, reduced; the result has their promoted dtype.
Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::Mean);
/// Binary cross-entropy of sigmoid(x) against targets in [0, 1], of one shape, reduced; the result
/// has their promoted dtype, or float32 if that is not floating.
Tensor bce_with_logits(const Tensor& x, const Tensor& targets,
                       Reduction reduction = Reduction::Mean);

}  // namespace brrr
