#pragma once
// View ops: other shapes and strides over the same memory. Tensor's members document the rest.

#include <vector>

#include "core/tensor.h"

namespace brrr {

/// The sum of `t` over the dims that broadcasting `sizes` to its shape would add or expand; `t`
/// itself if the shapes are equal. This is the gradient of broadcasting.
Tensor sum_to(const Tensor& t, const IntList& sizes);
/// A new tensor that views all of `t` with its sizes and strides.
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
/// The slices t.select(dim, 0), t.select(dim, 1), ...; one pass concatenates their gradients.
std::vector<Tensor> unbind(const Tensor& t, int64_t dim = 0);

}  // namespace brrr
