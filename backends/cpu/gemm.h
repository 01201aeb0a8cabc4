#pragma once
// CPU matrix products: our own kernels where they are faster, else OpenBLAS.

#include <utility>

#include "core/backend.h"

namespace brrr::cpu {

/// C = op(A) op(B) for float32 and float64; C does not overlap A or B. The bits of C depend on
/// shape, transposes and values only: not on threads, alignment or leading dimensions.
void gemm(const Gemm& problem);
/// Implements Backend::gemm.
void gemm_batch(const Gemm& first, int64_t n, const int64_t* at);
/// The problem C^T = op(B)^T op(A)^T; c and ldc are left unchanged.
inline Gemm swapped(Gemm g) {
  std::swap(g.m, g.n);
  std::swap(g.a, g.b);
  std::swap(g.lda, g.ldb);
  g.trans_a = !std::exchange(g.trans_b, !g.trans_a);
  return g;
}
inline double multiplications(const Gemm& g) {
  return static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
}

// --- small_gemm.cpp: our own kernels -------------------------------------------------------------

/// Whether small_gemm is to compute this product: a function of dtype, shape and transposes alone
/// (and of the machine's vector width and L2 size).
bool use_small_gemm(const Gemm& problem);
/// A sum longer than kLongestChain is the sum of its chains of kChain terms, added in order:
/// rounding error grows with a chain's length.
inline constexpr int64_t kLongestChain = 8192, kChain = 256;

/// C = op(A) op(B) for float32 and any m, n, k >= 1; C does not overlap A or B. Every element is
/// one chain of fused multiply-adds in the order of k that starts from zero or, with `add`, from C,
/// so its bits depend only on a row of op(A) and a column of op(B) (and C): not on the shape,
/// transposes, leading dimensions, alignment, threads or vector width (except which of two NaNs
/// propagates). Beyond kLongestChain terms the same holds of the sum of chains.
/// Uses 130 KB of stack (350 KB with 256-bit vectors) and no heap.
void small_gemm(const Gemm& problem);
/// The same chains where one operand has so few rows that packing the other, contiguous along k,
/// would not pay. has_few_rows is a function of the shape and transposes.
inline constexpr int64_t kFewRows = 8;
bool has_few_rows(const Gemm& problem);
void few_gemm(const Gemm& problem);
/// n products with the shape of `first`, planned once and run by this thread; see Backend::gemm.
void small_gemm(const Gemm& first, int64_t n, const int64_t* at);

}  // namespace brrr::cpu
