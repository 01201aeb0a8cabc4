#pragma once
// What it means that eager and graph mode give the same bits.

#include <cstddef>
#include <vector>

#include "core/tensor.h"

namespace brrr {

/// The elements of `t`, row-major, as bytes of the host, with one and the same NaN wherever there
/// is a NaN: which one of its operands' an operation hands on, and its sign, is left to the
/// compiler and the processor. Empty for an undefined tensor. Throws inside a graph-mode step.
std::vector<char> comparable_bytes(const Tensor& t);

/// Whether the two have the same dtype, sizes and comparable_bytes(), or are both undefined. Other
/// than ==, this tells 0 from -0 and takes a NaN for equal to any other.
bool same_bits(const Tensor& a, const Tensor& b);
/// The same of all pairs; false if there are more of one than of the other.
bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b);

namespace graph {

/// Makes every NaN among `n` elements of dtype `t` the same one.
void unify_nans(DType t, void* elements, size_t n);

}  // namespace graph

}  // namespace brrr
