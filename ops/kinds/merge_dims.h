#pragma once
// Reorders and merges dims so that a kernel iterates over as few as the operands' strides allow.

#include <array>
#include <cstdint>
#include <utility>

#include "core/int_list.h"

namespace brrr {

/// Iterates over dims, the last one innermost; at[k] is the offset of operand k in elements.
template <size_t N> class DimWalk {
 public:
  /// Starts at element `first`. `stride`: each operand's strides over the dims.
  DimWalk(int ndim, const int64_t* size, const std::array<const int64_t*, N>& stride, int64_t first)
      : ndim_(ndim), size_(size), stride_(stride) {
    for (int d = ndim - 1; d >= 0; --d) {
      index_[d] = first % size[d];
      first /= size[d];
      move(d, index_[d]);
    }
  }
  void next() {
    for (int d = ndim_ - 1; d >= 0; --d) {
      move(d, 1);
      if (++index_[d] < size_[d]) return;
      move(d, -std::exchange(index_[d], 0));
    }
  }
  int64_t at[N] = {};

 private:
  void move(int d, int64_t steps) {
    for (size_t k = 0; k < N; ++k) at[k] += steps * stride_[k][d];
  }
  const int ndim_;
  const int64_t* const size_;
  const std::array<const int64_t*, N> stride_;
  int64_t index_[kMaxDims];
};

/// Drops dims of size 1, sorts the others by the strides of operand `written`, largest outermost
/// (-1: keeps their order), and merges neighbours that all `count` operands traverse alike.
/// `stride(k)` points to operand k's strides over the dims, or is null. Returns the number of dims
/// left, at least one.
template <class Stride>
int merge_dims(int ndim, int64_t* size, int count, int written, const Stride& stride) {
  const auto each = [&](const auto& f) {
    for (int k = 0; k < count; ++k) {
      if (int64_t* s = stride(k)) f(s);
    }
  };
  int used = 0;
  for (int d = 0; d < ndim; ++d) {
    if (size[d] == 1) continue;
    if (used != d) each([&](int64_t* s) { s[used] = s[d]; });
    size[used++] = size[d];
  }
  for (int i = 1; i < used && written >= 0; ++i) {
    for (int j = i; j > 0 && stride(written)[j - 1] < stride(written)[j]; --j) {
      std::swap(size[j - 1], size[j]);
      each([&](int64_t* s) { std::swap(s[j - 1], s[j]); });
    }
  }
  if (used == 0) {
    size[0] = 1;
    each([](int64_t* s) { s[0] = 0; });
    return 1;
  }
  int last = 0;
  for (int d = 1; d < used; ++d) {
    bool merge = true;
    each([&](const int64_t* s) { merge &= s[last] == s[d] * size[d]; });
    if (merge) {
      size[last] *= size[d];
    } else {
      size[++last] = size[d];
    }
    each([&](int64_t* s) { s[last] = s[d]; });
  }
  return last + 1;
}

}  // namespace brrr
