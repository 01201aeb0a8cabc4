#pragma once
// A pointwise call as one loop nest over strided operands, with as few dims as possible. It drives
// the CPU's loops and a GPU's kernels.

#include "ops/kinds/pointwise.h"

namespace brrr {

inline constexpr int kMostPointwise = kMaxOperands + kMaxOutputs;

struct PointwiseOperand {
  char* base;  ///< Of a scalar: the address of `scalar`, on the host.
  DType dtype;
  bool number;
  bool made = false;           ///< Not in memory: the element is its own offset, an int64.
  int64_t stride[kMaxDims];    ///< In elements.
  alignas(16) int64_t scalar;  ///< Storage of a scalar, int64 or double.
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype)); }
};

struct Iteration {
  const PointwiseInfo* info;
  PointwiseLoop loop;  ///< The CPU driver's.
  DType compute;
  int n_out, n_in, ndim;  ///< n_in includes made operands.
  int64_t numel;
  int64_t size[kMaxDims];
  PointwiseOperand operands[kMostPointwise];  ///< Outputs, then inputs.
  /// Copies of inputs that overlap an output in another layout.
  Tensor copies[kMaxOperands];
  int count() const { return n_out + n_in; }
  /// The dtype in which the loop sees operand k.
  DType loop_type(int k) const {
    if (k < n_out) return info->mask_out[k] ? kBool : compute;
    return info->integers >> (k - n_out) & 1 ? kInt64 : compute;
  }
};

/// Walks the outer dims; at[k] is operand k's address in the current row, at its element `first`,
/// or the address of its vx::Line if it is made.
class PointwiseRows {
 public:
  PointwiseRows(const Iteration& it, int64_t row, int64_t first)
      : it_(it), outer_(it.ndim - 1), first_made_(it.count() - it.info->n_made) {
    for (int k = 0; k < it.count(); ++k) {
      const PointwiseOperand& o = it.operands[k];
      const int64_t item = o.made ? 0 : o.item(), element = first * o.stride[outer_];
      for (int d = 0; d < outer_; ++d) bytes_[d][k] = o.stride[d] * item;
      at[k] = o.base + element * item;
      if (!o.made) continue;
      vx::Line& place = places_[k - first_made_];
      place = {element, o.stride[outer_]};
      at[k] = reinterpret_cast<char*>(&place);
    }
    for (int d = outer_ - 1; d >= 0; --d) {
      index_[d] = row % it.size[d];
      row /= it.size[d];
      move(d, index_[d]);
    }
  }
  /// Advances by `rows`, all but the last of which lie within the last outer dim.
  void skip(int64_t rows) {
    index_[outer_ - 1] += rows - 1;
    move(outer_ - 1, rows - 1);
    next();
  }
  void next() {
    for (int d = outer_ - 1; d >= 0; --d) {
      const bool on = ++index_[d] < it_.size[d];
      move(d, on ? 1 : 1 - it_.size[d]);
      if (on) return;
      index_[d] = 0;
    }
  }
  char* at[kMostPointwise];

 private:
  void move(int d, int64_t steps) {
    const int64_t* bytes = bytes_[d];
    const int n = it_.count();
    for (int k = 0; k < n; ++k) at[k] += steps * bytes[k];
    for (int k = first_made_; k < n; ++k) {
      places_[k - first_made_].first += steps * it_.operands[k].stride[d];
    }
  }
  const Iteration& it_;
  int outer_, first_made_;
  vx::Line places_[kMaxMade];
  int64_t index_[kMaxDims], bytes_[kMaxDims][kMostPointwise];
};

/// Fills `it`; false if there is nothing to do. Sorts the dims by the output's strides, largest
/// outermost, and merges neighbours that every operand traverses alike.
bool pointwise_iteration(const OpCall& c, Iteration& it);
/// Bytes of Iteration::copies.
int64_t pointwise_scratch(const OpCall& c);

}  // namespace brrr
