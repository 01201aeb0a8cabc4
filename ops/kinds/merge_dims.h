#pragma once
// Dims as a kernel walks them: as few as the operands' strides allow.

#include <cstdint>
#include <utility>

namespace brrr {

/// Drops dims of size 1, puts the larger strides of operand `written` outside (none is moved where
/// that is -1), and makes one dim of neighbours that all of `count` operands walk alike.
/// `stride(k)` points to operand k's strides over the dims, or to nothing. Returns how many dims
/// are left: at least one.
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
