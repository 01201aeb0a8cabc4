#pragma once
// What says in one number that two runs ended with the same bits (brrr::same_bits compares two).

#include <brrr/brrr.h>

#include <vector>

namespace examples {

/// FNV-1a (Fowler, Noll and Vo) over the comparable_bytes() of the tensors, one after the other.
uint64_t checksum(const std::vector<brrr::Tensor>& tensors);

}  // namespace examples
