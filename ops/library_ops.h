#pragma once
// Ops with kernels of their own: products, joining, indexing, drawing.

#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace brrr {

// --- products: matmul.cpp ------------------------------------------------------------------------
/// [.., M, K] x [.., K, N] -> [.., M, N]; batch dims broadcast; 1-d operands as in PyTorch.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x W^T + b: x [.., in], weight [out, in], bias [out] or undefined -> [.., out]. The product
/// and the sum each round to the dtype.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// Einstein summation: "bhid,bhjd->bhij" gives each dim of each operand an index; what the output
/// does not name is summed. Without "->" the output is what is named once, in alphabetical order.
/// An index twice in one term takes the diagonal; "..." stands for leading or other dims that
/// broadcast; dims of size 1 stretch. Operands of one dtype; products go from left to right. The
/// result may be a view of the only operand.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

// --- joining: join.cpp ---------------------------------------------------------------------------
Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0);

// --- indexing: index.cpp; indices are int64 or int32, and range checked --------------------------
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

// --- triangles: triangle.cpp ---------------------------------------------------------------------
/// x [.., rows, cols] where column - row <= diagonal, else 0 (whatever x holds there); any dtype.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
/// x [.., rows, cols] where column - row >= diagonal, else 0.
Tensor triu(const Tensor& x, int64_t diagonal = 0);

// --- running sums: cumsum.cpp --------------------------------------------------------------------
/// y[i] = x[0] + .. + x[i] along dim, one after the other; integers and bool give int64.
Tensor cumsum(const Tensor& x, int64_t dim);

// --- order, of any dtype: sort.cpp ---------------------------------------------------------------
// NaN is greater than all numbers, -0 equals 0, and equal elements keep their order, in a
// descending sort too: the lowest position first.
/// int64 positions along dim that put x in order.
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// x in order along dim, and the int64 positions that its elements come from.
std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The first k elements of a descending (or, unless `largest`, ascending) sort, and their
/// positions; 0 <= k <= x.size(dim).
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);

// --- drawing: multinomial.cpp --------------------------------------------------------------------
/// Positions drawn by weight, int64 [num_samples] or [rows, num_samples]; one draw of the random
/// stream. probs is floating, [n] or [rows, n], and need not sum to 1. Throws when a weight is
/// negative, infinite or NaN, when a row is all zero, and, without replacement, when it has fewer
/// positive weights than samples; without replacement the samples come in the order of drawing.
Tensor multinomial(const Tensor& probs, int64_t num_samples, bool replacement = false);

}  // namespace brrr
