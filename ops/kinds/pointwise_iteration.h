#pragma once
// A pointwise call as one walk over strided operands, with as few dims as possible: what the CPU's
// loops and a GPU's kernels are driven by.

#include "ops/kinds/pointwise.h"

namespace brrr {

inline constexpr int kMostPointwise = kMaxOperands + kMaxOutputs;

struct PointwiseOperand {
  char* base;  ///< Of a number given with the call: the number's own address, on the host.
  DType dtype;
  bool number;
  bool made = false;           ///< No memory: the element is the offset itself, an int64.
  int64_t stride[kMaxDims];    ///< In elements.
  alignas(16) int64_t scalar;  ///< Storage of a number, int64 or double.
  int64_t item() const { return static_cast<int64_t>(itemsize(dtype)); }
};

struct Iteration {
  const PointwiseInfo* info;
  PointwiseLoop loop;  ///< The CPU driver's.
  DType compute;
  int n_out, n_in, ndim;  ///< Inputs with those that are made.
  int64_t numel;
  int64_t size[kMaxDims];
  PointwiseOperand operands[kMostPointwise];  ///< Outputs, then inputs.
  /// What stands in for inputs that share memory with an output in another layout.
  Tensor copies[kMaxOperands];
  int count() const { return n_out + n_in; }
  /// What the loop sees of operand k.
  DType loop_type(int k) const {
    if (k < n_out) return info->mask_out[k] ? kBool : compute;
    return info->integers >> (k - n_out) & 1 ? kInt64 : compute;
  }
};

/// Fills `it`; false if there is nothing to do. Larger strides of the output are outside,
/// neighbours that every operand walks alike are one dim.
bool pointwise_iteration(const OpCall& c, Iteration& it);
/// Of those copies.
int64_t pointwise_scratch(const OpCall& c);

}  // namespace brrr
