#pragma once
// The kernels of attention. The CPU's: one head at a time. Scores exist for a tile of queries and
// keys only: the forward pass keeps each row's maximum and sum up to date from tile to tile
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), the backward pass
// makes the weights again from them (Dao et al., "FlashAttention", 2022). Tiles and the order of
// sums are functions of the shape alone: along keys within a tile, then tile after tile.

#include <cstdint>

#include "core/op.h"
#include "ops/rows/dropout.h"

namespace brrr {

/// Inputs of the row attention, then those that the row of its gradient has besides.
namespace attention {
enum Operand { Q, K, V, Mask, Key, Out, Max, Sum, G };
}

struct AttentionAttrs {
  int64_t causal;
  double scale, dropout;  ///< The probability of dropout.
};

/// The rows' kernels for a GPU, and the calls that they serve: not float64, not very wide heads.
void attention_cuda(OpCall& c);
void attention_backward_cuda(OpCall& c);
bool attention_on_cuda(const OpCall& c);

/// A matrix whose rows are contiguous and `row` elements apart.
template <class T> struct RowMatrix {
  const T* data;
  int64_t row;
};

/// The CPU's kernels transpose kQueries rows at a time: on the stack, or where a head is wider than
/// kWide in AttentionHead::room.
inline constexpr int64_t kQueries = 32, kWide = 256;
/// Elements of a head's room.
constexpr int64_t attention_room(int64_t width, int64_t depth) {
  return width > kWide || depth > kWide ? kQueries * (width + depth) : 0;
}

template <class T> struct AttentionHead {
  int64_t queries, keys, width, depth;
  RowMatrix<T> q, k, v;              ///< [queries, width], [keys, width], [keys, depth]
  const uint8_t* allowed = nullptr;  ///< Of each score whether it counts, or
  const T* bias = nullptr;           ///< what is added to it, or neither.
  int64_t mask_row = 0, mask_col = 0;
  bool causal;
  T scale;
  T* room = nullptr;  ///< attention_room() elements, if any.
  const DropoutDraw* dropout = nullptr;
  int64_t element = 0;  ///< Of the dropout mask's elements the head's first.
};

/// out [queries, depth]; max and sum [queries] are what backward needs of each row's softmax.
template <class T> void attention_forward(const AttentionHead<T>& h, T* out, T* max, T* sum);

template <class T> struct AttentionGradient {
  RowMatrix<T> g, out;  ///< [queries, depth]
  const T *max, *sum;
  T *dq, *dk, *dv;  ///< Dense.
  T* along;         ///< Room for [queries].
};
template <class T>
void attention_backward(const AttentionHead<T>& h, const AttentionGradient<T>& d);

}  // namespace brrr
