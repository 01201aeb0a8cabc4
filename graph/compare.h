#pragma once
// Bitwise equality of tensors, as eager and graph mode promise it.

#include <cstddef>
#include <vector>

#include "core/tensor.h"

namespace brrr {

/// The elements of `t`, row-major, as bytes on the host, with every NaN replaced by the same one:
/// which operand's NaN an operation propagates, and its sign, are up to the compiler and the
/// processor. Empty for an undefined tensor. Throws inside a graph-mode step.
std::vector<char> comparable_bytes(const Tensor& t);

/// Whether the two have the same dtype, sizes and comparable_bytes(), or are both undefined. Unlike
/// ==, this distinguishes 0 from -0, and all NaNs are equal.
bool same_bits(const Tensor& a, const Tensor& b);
/// Whether all pairs are; false if the lengths differ.
bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b);

namespace graph {

/// Replaces every NaN among `n` elements of dtype `t` by the same one, all bits set.
void unify_nans(DType t, void* elements, size_t n);

}  // namespace graph

}  // namespace brrr
