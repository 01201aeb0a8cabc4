#pragma once
// What says in one number that two runs ended with the same bits.

#include <brrr/brrr.h>

#include <vector>

namespace examples {

/// FNV-1a (Fowler, Noll and Vo) over the bytes of the tensors, one after the other.
uint64_t checksum(const std::vector<brrr::Tensor>& tensors);

/// Whether two lists of tensors have the same bytes. Unlike ==, this tells 0 from -0.
bool same_bits(const std::vector<brrr::Tensor>& a, const std::vector<brrr::Tensor>& b);

}  // namespace examples
