#pragma once
// What fusion costs and saves: the limits of one kernel, the bytes that it moves, and why two
// kernels were not fused.

#include <concepts>

#include "graph/schedule.h"

namespace brrr::graph {

/// The polynomials that an instruction's generated code evaluates per vector, on which compile time
/// depends. Two conversions of 16-bit floats count as one.
size_t polynomials(const Recording& r, const Instr& i);

/// What limits the fusion of a kernel.
struct KernelSize {
  size_t instrs = 0;
  size_t in_memory = 0;  ///< Distinct values that it loads or stores.
  size_t scalars = 0;    ///< Operands that are not tensors.
  size_t polynomials = 0;
  /// Whether one kernel over `ndim` dims may have this size.
  bool allowed(int ndim, const Target& target) const;
};
/// The size of groups g and h as one kernel, which keeps what only they use in registers.
KernelSize kernel_size(const Recording& r, const Schedule& s, uint32_t g, uint32_t h);
/// Whether random words that g or h alone generates for whole vectors would be generated for parts
/// of vectors in their common kernel, which walks by rows: some twice, some for no use.
bool splits_draws(const Recording& r, const Target& target, const Group& g, const Group& h,
                  const Domain& merged);
/// Whether both check ids on a device, different ones in different calls: the fault record of a
/// kernel can name one call only.
bool mixes_checks(const Recording& r, const Group& g, const Group& h);
/// Bytes of memory that moving a kernel may cost, as values live longer.
constexpr int64_t kNegligibleBytes = 4096;

/// Bytes that a group's ops load and store if run one by one; for its kernel see group_bytes().
double group_bytes_unfused(const Recording& r, const Group& g);

/// Why a group was not fused with the last earlier one whose results it reads, and the bytes that
/// pass between them through memory; "" where there is none. Only for groups of one part and single
/// folds with the library's kernel, not between two of the latter.
std::string why_not_fused(const Recording& r, const Schedule& s, const Target& target, uint32_t g);

/// For people: "10.5 MiB".
std::string bytes_text(double bytes);
template <std::integral N> std::string bytes_text(N bytes) {
  return bytes_text(static_cast<double>(bytes));
}

}  // namespace brrr::graph
