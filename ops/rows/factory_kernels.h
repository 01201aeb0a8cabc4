#pragma once
// Kernels of creation rows on a GPU (the CPU's are beside the rows).

#include "core/op.h"

namespace brrr {

void full_cuda(OpCall& c);
void arange_cuda(OpCall& c);
void linspace_cuda(OpCall& c);
void eye_cuda(OpCall& c);

/// Fills contiguous memory of its own with zeros.
void zero_cuda(const TensorImpl& t);

void rand_cuda(OpCall& c);
void randn_cuda(OpCall& c);
void randint_cuda(OpCall& c);
void draw_key_cuda(OpCall& c);
void randperm_cuda(OpCall& c);
void dropout_mask_cuda(OpCall& c);
void dropout_mask_at_cuda(OpCall& c);

}  // namespace brrr
