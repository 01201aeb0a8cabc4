#pragma once
// Operations between the processes of a run.

#include "core/tensor.h"

namespace brrr::dist {

// Rows in collective.cpp. Every rank calls the same, with the same shapes and dtypes.
/// The sum over all ranks, in rank order: the same bits on each and with every transport. Its
/// gradient is the sum of the gradients.
Tensor all_reduce(const Tensor& x);
/// [n, ..] of each rank, one after the other: [size() * n, ..].
Tensor all_gather(const Tensor& x);
/// Part rank() along dim 0 of the sum over all ranks: [n, ..] -> [n / size(), ..].
Tensor reduce_scatter(const Tensor& x);
/// The values of rank `root`; its gradient there is the sum of the gradients, elsewhere zero.
Tensor broadcast(const Tensor& x, int root = 0);

}  // namespace brrr::dist
