#pragma once
// What kernels of library rows share.

#include <cstring>
#include <type_traits>

#include "core/device_kernel.h"
#include "core/op.h"
#include "ops/kinds/pointwise.h"

namespace brrr {

/// A tensor as lines along a dim: [outer, n, inner].
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;
};
inline Lines lines_along(const TensorImpl& x, int dim) {
  Lines l;
  for (int d = 0; d < x.ndim; ++d) (d < dim ? l.outer : d > dim ? l.inner : l.n) *= x.sizes[d];
  return l;
}

/// f of x whose dim `dim` has been made the last one, and back: of rows that take the last. The
/// others keep their order, so that those side by side in memory stay there.
template <class F> Tensor over_dim(const Tensor& x, int dim, const F& f) {
  const int last = x.dim() - 1;
  if (dim >= last) return f(x);
  IntList there, back;
  for (int d = 0; d <= last; ++d) {
    there.push_back(d < dim ? d : d < last ? d + 1 : dim);
    back.push_back(d < dim ? d : d == dim ? last : d - 1);
  }
  return f(x.permute(there)).permute(back).contiguous();
}

/// Other sizes and strides over the memory of `t`, in elements.
inline Tensor memory_view(const TensorImpl& t, const IntList& sizes, const IntList& strides,
                          int64_t offset) {
  return tensor_on(*t.storage, t.dtype, sizes, strides, offset);
}
/// The same with dims a and b changed over.
inline Tensor swapped(const TensorImpl& t, int a, int b) {
  IntList sizes = t.size_list(), strides = t.stride_list();
  std::swap(sizes[a], sizes[b]);
  std::swap(strides[a], strides[b]);
  return memory_view(t, sizes, strides, t.offset);
}
/// Writes `t`, in any dtype and layout, into each `step`-th place of `out` along `dim` from
/// `begin`.
inline void copy_into_part(const TensorImpl& out, const TensorImpl& t, int dim, int64_t begin,
                           int64_t step = 1) {
  IntList strides = out.stride_list();
  const int64_t offset = out.offset + begin * strides[dim];
  strides[dim] *= step;
  copy_now(*memory_view(out, t.size_list(), strides, offset).impl(), t);
}

/// Whether the heads of [.., heads, length, width] lie side by side for each place in the length,
/// as where one product has made them.
inline bool is_by_length(const Tensor& t) {
  const IntList strides = t.strides();
  const int n = strides.size();
  return n > 2 && strides[n - 3] < strides[n - 2];
}

/// How an operand that broadcasts to `all` is cut where dim 0 of that is (see OpSpec::cut).
inline int cut_beside(const TensorImpl& t, const TensorImpl& all) {
  return t.ndim == all.ndim && t.sizes[0] == all.sizes[0] ? 0 : kWhole;
}

/// Of rows that move elements along one dim: by dim 0 where that is another.
inline int cut_outside_dim(const OpCall& c, int) { return dim_of(c.attrs) > 0 ? 0 : kUncut; }

/// Integers wrap.
template <class T> T wrapping_sum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

/// Fills contiguous memory of its own with zeros.
inline void fill_zero(const TensorImpl& t) {
  if (t.device != kCPU) return zero_now(t);
  std::memset(t.data(), 0, static_cast<size_t>(t.numel) * itemsize(t.dtype));
}

/// The largest power of two that divides all numbers that were combined by or: what a thread may
/// move at once, given addresses and lengths.
constexpr int64_t common_unit(uint64_t bits) { return static_cast<int64_t>(bits & -bits); }
/// For kernels' texts: UnitOf<bytes>::type, up to 16.
inline constexpr char kUnitText[] = R"(
template <int> struct UnitOf { using type = unsigned char; };
template <> struct UnitOf<2> { using type = unsigned short; };
template <> struct UnitOf<4> { using type = unsigned; };
template <> struct UnitOf<8> { using type = unsigned long; };
template <> struct UnitOf<16> { using type = Pack<unsigned long, 2>; };
)";

}  // namespace brrr
