#pragma once
// Helpers of the kernels of library rows.

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

/// Applies f, which works along the last dim, along `dim`, by permuting it there and back. The
/// other dims keep their order, so that adjacent contiguous ones stay so.
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
/// `t` with dims a and b swapped.
inline Tensor swapped(const TensorImpl& t, int a, int b) {
  IntList sizes = t.size_list(), strides = t.stride_list();
  std::swap(sizes[a], sizes[b]);
  std::swap(strides[a], strides[b]);
  return memory_view(t, sizes, strides, t.offset);
}
/// Writes `t`, of any dtype and layout, to every `step`-th index of `out` along `dim` from `begin`
/// on.
inline void copy_into_part(const TensorImpl& out, const TensorImpl& t, int dim, int64_t begin,
                           int64_t step = 1) {
  IntList strides = out.stride_list();
  const int64_t offset = out.offset + begin * strides[dim];
  strides[dim] *= step;
  copy_now(*memory_view(out, t.size_list(), strides, offset).impl(), t);
}

/// Whether [.., heads, length, width] lies in memory as [.., length, heads, width], as when one
/// product has computed all heads.
inline bool is_by_length(const Tensor& t) {
  const IntList strides = t.strides();
  const int n = strides.size();
  return n > 2 && strides[n - 3] < strides[n - 2];
}

/// The cut of an operand that broadcasts to `all`, which is cut along dim 0 (see OpSpec::cut).
inline int cut_beside(const TensorImpl& t, const TensorImpl& all) {
  return t.ndim == all.ndim && t.sizes[0] == all.sizes[0] ? 0 : kWhole;
}

/// The cut of ops that move elements along one dim: along dim 0 if that is another one.
inline int cut_outside_dim(const OpCall& c, int) { return dim_of(c.attrs) > 0 ? 0 : kUncut; }

/// a + b; integers wrap on overflow.
template <class T> T wrapping_sum(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

/// Fills a contiguous tensor with zeros.
inline void fill_zero(const TensorImpl& t) {
  if (t.device != kCPU) return zero_now(t);
  std::memset(t.data(), 0, static_cast<size_t>(t.numel) * itemsize(t.dtype));
}

/// The largest power of two that divides all values combined into `bits` by or: of addresses and
/// lengths, the bytes that a thread may move at once.
constexpr int64_t common_unit(uint64_t bits) { return static_cast<int64_t>(bits & -bits); }
/// Kernel text: UnitOf<bytes>::type, for up to 16 bytes.
inline constexpr char kUnitText[] = R"(
template <int> struct UnitOf { using type = unsigned char; };
template <> struct UnitOf<2> { using type = unsigned short; };
template <> struct UnitOf<4> { using type = unsigned; };
template <> struct UnitOf<8> { using type = unsigned long; };
template <> struct UnitOf<16> { using type = Pack<unsigned long, 2>; };
)";

}  // namespace brrr
