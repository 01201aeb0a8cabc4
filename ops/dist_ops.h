#pragma once
// Operations between the processes of a run.

#include "core/tensor.h"

namespace brrr::dist {

// Rows in collective.cpp. Every rank must make the same call, with the same shapes and dtypes.
/// The sum over all ranks, added in rank order: the same bits on every rank and with every
/// transport. Its gradient is the all_reduce of the gradients.
Tensor all_reduce(const Tensor& x);
/// The tensors [n, ..] of all ranks, concatenated in rank order: [size() * n, ..].
Tensor all_gather(const Tensor& x);
/// Part rank() along dim 0 of the sum over all ranks: [n, ..] -> [n / size(), ..]; throws unless
/// size() divides n.
Tensor reduce_scatter(const Tensor& x);
/// The values of rank `root`. The gradient is the sum over all ranks on `root`, elsewhere zero.
Tensor broadcast(const Tensor& x, int root = 0);

}  // namespace brrr::dist
