#pragma once
// The kernels of ops/rows/index.cpp.

#include "core/op.h"

namespace brrr {

/// Throws unless the index, input `operand`, is in [0, size); `dim` is for the message.
void check_index(const OpCall& c, int operand, int dim, int64_t size);

// The CPU's take an index that has been checked. On a GPU, positions outside the range are noted
// (core/device_kernel.h), read as 0, and nothing is added there.

/// out[.., j, ..] = x[.., index[.., j, ..], ..] along `dim`; inputs x, index.
void gather_cpu(OpCall& c, int dim);
void gather_cuda(OpCall& c, int dim);
/// out[j] = x[index[j]] along `dim`; the index counts as 1-d whatever its shape.
void select_cpu(OpCall& c, int dim);
void select_cuda(OpCall& c, int dim);
/// out = base (input 0, or zeros when it is null, or out itself) with src (input 2) added where
/// gather_cpu with the same index would read. Duplicates add up in index order.
void scatter_add_cpu(OpCall& c, int dim);
void scatter_add_cuda(OpCall& c, int dim);
/// The same, adding where select_cpu would read.
void index_add_cpu(OpCall& c, int dim);
void index_add_cuda(OpCall& c, int dim);
struct OneHotAttrs {
  int64_t classes;
};
void one_hot_cpu(OpCall& c);
/// What they take: a dense index; a sum its terms besides, where they have another dtype or memory
/// than it.
int64_t pick_scratch(const OpCall& c, int index);
int64_t sum_scratch(const OpCall& c);
void one_hot_cuda(OpCall& c);

}  // namespace brrr
