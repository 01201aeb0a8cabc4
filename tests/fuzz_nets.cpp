// Actions of a fuzzed net: layers over many rows, whose kernels can run part by part and whose
// values are worth recomputing, losses, gradients and updates.
#include "tests/fuzz_steps.h"

namespace brrr::fuzz {

namespace {

// One of the last few values that have the net's row shape.
Tensor rows(const Machine& m, uint32_t n) {
  const Tensor& w = m.state.leaves[0];
  n %= 3;
  Tensor last;
  for (size_t k = m.pool.size(); k-- > 0;) {
    const Tensor& t = m.pool[k];
    if (t.dim() != 2 || t.size(0) < 64 || t.size(1) != kWidth || t.dtype() != w.dtype()) continue;
    last = t;
    if (n-- == 0) break;
  }
  return last;
}

// Eight rows form a sequence.
Tensor attention(const Tensor& t, const Tensor& other, uint32_t n) {
  const auto heads = [](const Tensor& x) { return x.reshape({-1, 8, 2, 4}).transpose(1, 2); };
  Tensor q = heads(t), k = heads(n & 1 ? t : other);
  if (n & 2) q = rotary_embedding(q, arange(8));
  AttentionOptions how{.causal = (n & 4) != 0};
  if (n & 8) how.mask = ones({8, 8}, kBool);
  return scaled_dot_product_attention(q, k, heads(t), how).transpose(1, 2).reshape({-1, kWidth});
}

}  // namespace

void layer(Machine& m, const Ins& i) {
  const std::vector<Tensor>& leaves = m.state.leaves;
  const Tensor &w = leaves[i.c % 2], &scale = leaves[3], &shift = leaves[4];
  const Tensor t = rows(m, i.a), other = rows(m, i.b);
  if (!t.defined()) return;
  switch (i.n % 18) {
    case 0:
      return m.push(linear(t, w, shift));
    case 1:
      return m.push(matmul(gelu(t), w));
    case 2:
      return m.push(t + other * scale);
    case 3:
      return m.push(layer_norm(t, {kWidth}, scale, shift));
    case 4:
      return m.push(softmax(t, 1) * other);
    case 5:
      return m.push(dropout(t, 0.3, true));
    case 6:
      return m.push(cat({t.slice(1, 3, kWidth), other.slice(1, 0, 3) * 0.5}, 1));
    case 7:
      return m.push(t - mean(t, {1}, true));
    case 8:  // Eight rows at a time, transposed.
      return m.push(matmul(t.reshape({-1, kWidth, kWidth}), w).transpose(1, 2).reshape(t.sizes()));
    case 9:
      return m.push(attention(t, other, i.c));
    case 10:
      return m.push((t * 0.5).add_(other));
    case 11:
      return m.push(rms_norm(t, {kWidth}, i.c & 2 ? scale : Tensor()));
    case 12:
      return m.push(log_softmax(t, 1));
    case 13:
      return m.push(matmul(t, matmul(t.t(), other) * 1e-3));
    case 14:  // Sums of columns, and uses of them.
      return m.push((t - mean(t, {0}, true)) * rsqrt(var(t, {0}, false, true) + 0.1));
    case 15:
      return m.push(t * sigmoid(other) + tanh(t));
    case 16:  // State is written and read by row.
      if (i.c % 4 == 0) rows(m, 2).detach().mul_(0.5);
      return m.push(t + shift);
    default:
      return m.push(embedding(leaves[2], (t.select(1, 0) > 0.0).to(kInt64)) + other);
  }
}

void train(Machine& m, const Ins& i) {
  const Tensor t = rows(m, i.a);
  if (!t.defined()) return;
  const Tensor wanted =
      i.n % 2 ? full({t.size(0)}, 3.0, kInt64) : remainder(arange(t.size(0)), kWidth);
  Tensor loss = i.b % 3 ? cross_entropy(t + tanh(rows(m, i.b)), wanted) : (t * t).mean();
  for (const Tensor& leaf : m.state.leaves) loss = loss + leaf.sum() * 0.125;
  if (i.c % 3 == 0) {
    for (const Tensor& leaf : m.state.leaves) leaf.set_grad({});
  }
  loss.backward();
  if (i.c % 4 == 0) optim::clip_grad_norm_(m.state.leaves, 1.0);
  m.push(loss.detach());
}

}  // namespace brrr::fuzz
