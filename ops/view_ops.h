#pragma once
// View ops: other shapes and strides over the same memory. See the members of Tensor for the rest.

#include <vector>

#include "core/tensor.h"

namespace brrr {

/// The sum of `t` over the dims that broadcasting `sizes` to its shape would add or stretch; `t`
/// itself when the shapes are equal. Gradients of broadcast operands come through it.
Tensor sum_to(const Tensor& t, const IntList& sizes);
/// A view that differs from `t` in nothing but identity.
Tensor alias(const Tensor& t);
/// Strided access to the storage that `t` views, in at most 6 dims; sizes, strides and offset in
/// elements.
Tensor as_strided(const Tensor& t, const IntList& sizes, const IntList& strides, int64_t offset);

Tensor transpose(const Tensor& t, int64_t a, int64_t b);
Tensor reshape(const Tensor& t, const IntList& sizes);
Tensor permute(const Tensor& t, const IntList& dims);
Tensor unsqueeze(const Tensor& t, int64_t dim);
Tensor squeeze(const Tensor& t, int64_t dim);
Tensor expand(const Tensor& t, const IntList& sizes);
Tensor flatten(const Tensor& t, int64_t start = 0, int64_t end = -1);
std::vector<Tensor> chunk(const Tensor& t, int64_t chunks, int64_t dim = 0);
std::vector<Tensor> split(const Tensor& t, int64_t size, int64_t dim = 0);
/// The slices t.select(dim, 0), t.select(dim, 1), ...; their gradients are joined in one pass.
std::vector<Tensor> unbind(const Tensor& t, int64_t dim = 0);

}  // namespace brrr
