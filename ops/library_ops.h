#pragma once
// Ops with kernels of their own: products, joining, indexing, drawing.

#include <vector>

#include "core/tensor.h"

namespace brrr {

// --- products: matmul.cpp
// -----------------------------------------------------------------------------
/// [.., M, K] x [.., K, N] -> [.., M, N]; batch dims broadcast; 1-d operands as in PyTorch.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x W^T + b: x [.., in], weight [out, in], bias [out] or undefined -> [.., out].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// --- joining: join.cpp
// ----------------------------------------------------------------------------------
Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0);

// --- indexing: index.cpp; indices are int64 and range checked
// ----------------------------------------------
/// out[i][j] = x[index[i][j]][j] (dim 0); index has x's number of dims.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with src added at index along dim; duplicates add up in index order.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// Rows of x along dim; index is 1-d.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// Rows of weight [n, width] at ids of any shape -> [.., width].
Tensor embedding(const Tensor& weight, const Tensor& ids);
/// int64 [.., classes] with one 1 a row.
Tensor one_hot(const Tensor& ids, int64_t classes);

}  // namespace brrr
