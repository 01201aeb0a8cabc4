#pragma once
// Matrix products: our own kernels where they are faster, else OpenBLAS.

#include <utility>

#include "core/backend.h"

namespace brrr::cpu {

/// C = op(A) op(B) for float32 and float64; C does not overlap A or B. The bits of C depend on
/// shape, transposes and values only: not on threads, alignment or leading dimensions.
void gemm(const Gemm& problem);
/// Backend::gemm.
void gemm_batch(const Gemm& first, int64_t n, const int64_t* at);
/// C^T = op(B)^T op(A)^T; C is left as it lies.
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

// --- small_gemm.cpp: our own, where OpenBLAS leaves speed on the table ---------------------------

/// Whether small_gemm is to take this product: a function of dtype, shape and transposes alone.
bool small_gemm_wins(const Gemm& problem);
/// Longer sums are taken as sums of chains of 256 terms, one after the other: what rounding costs
/// grows with a chain's length.
inline constexpr int64_t kLongestChain = 8192, kChain = 256;

/// C = op(A) op(B) for float32 and any m, n, k >= 1; C does not overlap A or B. Every element is
/// one chain of fused multiply-adds in the order of k that starts from zero or, with `add`, from C,
/// so that its bits depend on a row of op(A) and a column of op(B) and on nothing else: not on the
/// shape, the transposes, leading dimensions, alignment, threads or the machine's vector width
/// (which of two NaNs goes on excepted). Beyond kLongestChain terms the same holds of their sum.
/// Takes 130 KB of stack, with 256-bit vectors 350, and no heap.
void small_gemm(const Gemm& problem);
/// The same where one side has so few rows that it is no use to copy what the other has, whose
/// terms are contiguous: a function of the shape and transposes.
inline constexpr int64_t kFewRows = 8;
bool has_few_rows(const Gemm& problem);
void few_gemm(const Gemm& problem);
/// n products of the first one's shape, planned once and run by this thread; see
/// Backend::gemm.
void small_gemm(const Gemm& first, int64_t n, const int64_t* at);

}  // namespace brrr::cpu
