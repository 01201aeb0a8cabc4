#pragma once
// The kernels of attention. The CPU's kernel processes one head at a time and holds scores for one
// tile of queries and keys only: the forward pass updates each row's maximum and sum from tile to
// tile (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), the backward
// pass recomputes the weights from them (Dao et al., "FlashAttention", 2022). Tiles and the order
// of sums are functions of the shape alone: along keys within a tile, then tile after tile.

#include <cstdint>

#include "core/device_kernel.h"
#include "core/op.h"
#include "ops/kinds/row_kernel.h"
#include "ops/rows/dropout.h"
#include "ops/rows/library_kernels.h"

namespace brrr {

/// Inputs of the attention row, then the additional ones of its gradient's row.
namespace attention {
enum Operand { Q, K, V, Mask, Key, Out, Max, Sum, G };
}

struct AttentionAttrs {
  int64_t causal;
  double scale, dropout;  ///< The probability of dropout.
  /// Results, and gradients of q, k and v, are laid out as [.., length, heads, width], as q is, so
  /// that merging the heads is a view.
  int64_t by_length;
};

// Masks and the online softmax, for one query in each lane of V.
// clang-format off
namespace vx {
BRRR_DEVICE_FUNCTIONS(kSoftmaxText,
  template <class V> BRRR_VX V lowest() { return V{} - infinity; }
  /* The causal rule hides keys after the query. */
  BRRR_VX b16 hidden(i32 query, i32 key) { return lt(query, key); }
  /* What a bool mask adds to a score. */
  template <class V> BRRR_VX V mask_term(b16 allowed) { return where(allowed, V{}, lowest<V>()); }
  /* Ignores NaN, which reaches the results through the sums. */
  template <class V> BRRR_VX V larger(V a, V b) { return where(lt(a, b), b, a); }
  /* The maximum to subtract, and 1 / sum; both are 0 for a query that sees no key. */
  template <class V> BRRR_VX V finite_shift(V max) { return where(eq(max, lowest<V>()), V{}, max); }
  template <class V> BRRR_VX V inverse(V sum) { return where(eq(sum, V{}), V{}, 1 / sum); }
  /* The scores seen so far: their maximum, and their weights' sum relative to `shift`. */
  template <class V> struct Softmax {
    V max;
    V sum;
    V shift;
  };
  /* Raises the maximum to `top`, that of all tiles so far; returns the factor for earlier sums. */
  template <class V, class Exp> BRRR_VX V meet(Softmax<V>& s, V top, Exp power) {
    s.shift = finite_shift(top);
    const V fade = power(s.max - s.shift);
    s.max = top;
    s.sum = s.sum * fade;
    return fade;
  }
  /* The gradient of a score, from its weight and dw, the weight's gradient. `along` is the sum of
     their products over the query's keys, which equals sum(g * out) over the query's row. */
  template <class V> BRRR_VX V score_gradient(V weight, V dw, V along) {
    return weight * (dw - along);
  }
);
}  // namespace vx
// clang-format on

/// The GPU's kernels, and the calls that they serve: not float64, not very wide heads.
void attention_cuda(OpCall& c);
void attention_backward_cuda(OpCall& c);
bool attention_on_cuda(const OpCall& c);

struct AttentionSizes {
  int64_t heads = 1, queries, keys, width, depth;

  explicit AttentionSizes(const OpCall& c) {
    const TensorImpl &a = *c.in[attention::Q], &b = *c.in[attention::V];
    for (int d = 0; d < a.ndim - 2; ++d) heads *= a.sizes[d];
    queries = a.sizes[a.ndim - 2];
    width = a.sizes[a.ndim - 1];
    keys = b.sizes[b.ndim - 2];
    depth = b.sizes[b.ndim - 1];
  }
};

/// Views a result that is laid out `by_length` as [.., heads, length, width], and vice versa.
inline Tensor heads_view(const TensorImpl& t, const AttentionAttrs& attrs) {
  return swapped(t, t.ndim - 2, attrs.by_length ? t.ndim - 3 : t.ndim - 2);
}

/// A call's operands, one matrix per head, in dtype `t`; a floating mask is in t's compute type.
struct AttentionOperands : AttentionSizes {
  AttentionAttrs attrs;
  MatrixInput q, k, v, mask, g, out;
  bool bool_mask;

  AttentionOperands(const OpCall& c, DType t)
      : AttentionSizes(c),
        attrs(c.attrs.as<AttentionAttrs>()),
        q(c.in[attention::Q], t),
        k(c.in[attention::K], t),
        v(c.in[attention::V], t),
        mask(c.in[attention::Mask], compute_type(t), true),
        g(c.n_in > attention::G ? c.in[attention::G] : nullptr, t),
        out(c.n_in > attention::G ? c.in[attention::Out] : nullptr, t),
        bool_mask(c.in[attention::Mask] && c.in[attention::Mask]->dtype == kBool) {}
};

/// A matrix whose rows are contiguous and `row` elements apart.
template <class T> struct RowMatrix {
  T* data;
  int64_t row;
  T* at(int64_t k) const { return data + k * row; }
};
template <class T> RowMatrix<const T> matrix_of(const MatrixInput& m, int64_t head) {
  return {m.at<T>(head), m.row()};
}

template <class T> struct AttentionHead : AttentionSizes {
  RowMatrix<const T> q, k, v;  ///< [queries, width], [keys, width], [keys, depth]
  const uint8_t* allowed;      ///< A bool mask or
  const T* bias;               ///< a floating one, or both null.
  int64_t mask_row, mask_col;
  bool causal;
  T scale;
  const DropoutDraw* dropout;
  int64_t element;  ///< The head's first element in the dropout mask.

  AttentionHead(const AttentionOperands& o, int64_t head, const DropoutDraw* draw)
      : AttentionSizes(o),
        q(matrix_of<T>(o.q, head)),
        k(matrix_of<T>(o.k, head)),
        v(matrix_of<T>(o.v, head)),
        allowed(o.bool_mask ? o.mask.at<uint8_t>(head) : nullptr),
        bias(o.bool_mask ? nullptr : o.mask.at<T>(head)),
        mask_row(o.mask.row()),
        mask_col(o.mask.col()),
        causal(o.attrs.causal != 0),
        scale(static_cast<T>(o.attrs.scale)),
        dropout(draw),
        element(head * queries * keys) {}
};

/// out [queries, depth]; max and sum [queries] are what backward needs of each row's softmax.
template <class T>
void attention_forward(const AttentionHead<T>& h, RowMatrix<T> out, T* max, T* sum);

template <class T> struct AttentionGradient {
  RowMatrix<const T> g, out;  ///< [queries, depth]
  const T *max, *sum;
  RowMatrix<T> dq, dk, dv;
  T* along;  ///< Scratch memory for sum(g * out), [queries].
};
template <class T>
void attention_backward(const AttentionHead<T>& h, const AttentionGradient<T>& d);

}  // namespace brrr
