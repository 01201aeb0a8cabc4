#pragma once
// Products, concatenation, indexing, triangles, cumulative sums, sorting and sampling.

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
/// Einstein summation: "bhid,bhjd->bhij" names each dim of each operand by an index; indices that
/// are not in the output are summed. Without "->" the output has the indices that occur once, in
/// alphabetical order. An index twice in one term takes the diagonal; "..." stands for any dims
/// that broadcast; dims of size 1 broadcast. All operands have one dtype; products are taken from
/// left to right. With a single operand the result may be a view of it.
Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

// --- concatenation: join.cpp ---------------------------------------------------------------------
Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0);

// --- indexing: index.cpp; indices are int64 or int32, and range checked --------------------------
/// out[i][j] = x[index[i][j]][j] (dim 0); index has as many dims as x, out has index's shape.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x with src added at index along dim; duplicates accumulate in index order.
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// Slices x.select(dim, i) for each i of a 1-d index, stacked along dim.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// Rows of weight [n, width] at ids of any shape -> [.., width].
Tensor embedding(const Tensor& weight, const Tensor& ids);
/// int64 [.., classes]: 1 at the position of each id, else 0.
Tensor one_hot(const Tensor& ids, int64_t classes);

// --- triangles: triangle.cpp ---------------------------------------------------------------------
/// x [.., rows, cols] where column - row <= diagonal, else 0 (even where x is NaN); any dtype.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
/// x [.., rows, cols] where column - row >= diagonal, else 0.
Tensor triu(const Tensor& x, int64_t diagonal = 0);

// --- cumulative sums: cumsum.cpp -----------------------------------------------------------------
/// y[i] = x[0] + .. + x[i] along dim, on the CPU added in this order; integers and bool give int64.
Tensor cumsum(const Tensor& x, int64_t dim);

// --- sorting, of any dtype: sort.cpp -------------------------------------------------------------
// NaN is greater than all numbers, -0 equals 0, and sorts are stable, descending ones too: ties in
// order of position.
/// int64 positions along dim that sort x.
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// x sorted along dim, and the int64 positions that its elements come from.
std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// The first k elements of a descending (or, unless `largest`, ascending) sort, and their
/// positions; 0 <= k <= x.size(dim).
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);

// --- sampling: multinomial.cpp -------------------------------------------------------------------
/// Positions sampled by weight, int64 [num_samples] or [rows, num_samples]; one draw of the random
/// stream. probs is floating, [n] or [rows, n], and need not sum to 1. Throws if a weight is
/// negative, infinite or NaN, if a row is all zero, and, without replacement, if it has fewer
/// positive weights than samples; without replacement the samples are in the order of drawing.
Tensor multinomial(const Tensor& probs, int64_t num_samples, bool replacement = false);

}  // namespace brrr
