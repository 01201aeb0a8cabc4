#pragma once
// Converts runs of elements between storage dtypes and the four compute types.

#include "core/scalar.h"

namespace brrr {

/// Throws brrr::Error, naming `op`, unless dtype `t` can hold the value: an integer dtype holds
/// values that are in its range once truncated, every other dtype holds all values.
void check_holds(const char* op, Scalar v, DType t);
/// The value of integer dtype `t` that is nearest to v.
int64_t nearest_integer(int64_t v, DType t);

/// dst[i] = src[i * stride] for n elements; dst is dense in compute type `ct`, src has dtype
/// `from`; or both are one dtype of at most 16 bits.
void load_tile(DType ct, void* dst, DType from, const char* src, int64_t stride, int64_t n);
/// dst[i * stride] = src[i]; src is dense in `from`: a compute type, bool for a mask, or `to`.
void store_tile(DType to, char* dst, int64_t stride, DType from, const void* src, int64_t n);

}  // namespace brrr
