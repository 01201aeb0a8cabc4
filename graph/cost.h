#pragma once
// What fusion costs and saves: the sizes that one kernel may have, the bytes that it moves, and why
// two kernels are not one.

#include <concepts>

#include "graph/schedule.h"

namespace brrr::graph {

/// How many polynomials the text of an instruction has, for one vector: what a compiler pays for.
/// Two conversions of 16-bit floats count as one.
size_t polynomials(const Recording& r, const Instr& i);

/// What a kernel holds.
struct KernelSize {
  size_t instrs = 0;
  size_t in_memory = 0;  ///< Different values that it loads or stores.
  size_t numbers = 0;    ///< Operands that are no tensors.
  size_t polynomials = 0;
  /// Whether one kernel may hold so much, over a space of so many dims.
  bool allowed(int ndim, const Target& target) const;
};
/// Of groups g and h as one kernel. What only they use stays in its registers.
KernelSize kernel_size(const Recording& r, const Schedule& s, uint32_t g, uint32_t h);
/// Whether random words of g or h, made for a whole vector when alone, would be made for parts of
/// vectors if both were one kernel, which walks by rows: some of them twice, or for nobody.
bool splits_draws(const Recording& r, const Target& target, const Group& g, const Group& h,
                  const Domain& of_both);
/// Whether both look at ids on a device, of different calls at different ones: what a kernel notes
/// names one call.
bool mixes_checks(const Recording& r, const Group& g, const Group& h);
/// A move of a kernel that makes values live longer may cost so many bytes.
constexpr int64_t kLittleMemory = 4096;

/// Bytes that a group's ops load and store one by one; what its kernel does: group_bytes().
double bytes_apart(const Recording& r, const Group& g);

/// Why a kernel and the last one before it whose results it reads are two, with the bytes that pass
/// between them through memory; "" where there is no such, or neither is generated, or one is of no
/// pointwise op or fold.
std::string why_apart(const Recording& r, const Schedule& s, const Target& target, uint32_t group);

/// For people: "10.5 MiB".
std::string bytes_text(double bytes);
template <std::integral N> std::string bytes_text(N bytes) {
  return bytes_text(static_cast<double>(bytes));
}

}  // namespace brrr::graph
