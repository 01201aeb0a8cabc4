#pragma once
// Reductions over any dims; no dims means all. Tensor's members document the common ones. sum and
// prod of integers and bool give int64; mean, var, norm and logsumexp take floats only.
//
// The order of a reduction is a function of the logical shape, the dims and the device only, never
// of strides, vector width or threads (defined in ops/kinds/reduction.h).

#include <utility>

#include "core/tensor.h"

namespace brrr {

Tensor sum(const Tensor& x, const IntList& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const IntList& dims = {}, bool keepdim = false);
Tensor prod(const Tensor& x, const IntList& dims = {}, bool keepdim = false);
Tensor amax(const Tensor& x, const IntList& dims = {}, bool keepdim = false);  ///< ties share grad
Tensor amin(const Tensor& x, const IntList& dims = {}, bool keepdim = false);
/// Variance; divides by n - 1 if `unbiased`, else by n; NaN where the divisor is 0 or less.
Tensor var(const Tensor& x, const IntList& dims = {}, bool unbiased = true, bool keepdim = false);
Tensor norm(const Tensor& x, const IntList& dims = {}, bool keepdim = false);  ///< sqrt(sum(x^2))
Tensor logsumexp(const Tensor& x, const IntList& dims, bool keepdim = false);
Tensor any(const Tensor& x, const IntList& dims = {}, bool keepdim = false);  ///< always bool
Tensor all(const Tensor& x, const IntList& dims = {}, bool keepdim = false);  ///< always bool
Tensor argmax(const Tensor& x, int64_t dim, bool keepdim = false);  ///< int64, the first of ties
Tensor argmin(const Tensor& x, int64_t dim, bool keepdim = false);
/// Values and int64 indices of the maximum along one dim.
std::pair<Tensor, Tensor> max_with_indices(const Tensor& x, int64_t dim, bool keepdim = false);

}  // namespace brrr
