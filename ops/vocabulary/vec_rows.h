// The CPU vector prelude, part 8: short rows side by side. A vector holds 16 / n rows of n
// elements, n being a power of two below 16.
#ifndef BRRR_OPS_VEC_ROWS_H
#define BRRR_OPS_VEC_ROWS_H

#include "ops/vocabulary/vec.h"

namespace brrr::vx {

// The lane that lane i takes: so far behind it in its row; its row's first one, and in its own
// place in the first row; the first one of row i, and the i-th row's number.
template <int by> struct Further {
  static constexpr int of(int i) { return i | by; }
};
template <int n> struct Begin {
  static constexpr int of(int i) { return i / n * n; }
};
template <int n> struct Place {
  static constexpr int of(int i) { return i % n; }
};
template <int n> struct FirstOf {
  static constexpr int of(int i) { return i * n % lanes; }
};
template <int n> struct Row {
  static constexpr int of(int i) { return i / n; }
};

template <int... i> struct Places {};
template <class Lane, int... i, class V> BRRR_VX V shuffled(V a, V b, Places<i...>) {
  return __builtin_shufflevector(a, b, Lane::of(i)...);
}
// g++ 12 shuffles a vector of two registers lane by lane, so they are shuffled one by one.
template <class Lane, class V> BRRR_VX V shuffle(V v) {
#if BRRR_VX_BYTES == 32
  if constexpr (sizeof(V) == 64) {
    typename Part<Element<V>>::type h[2];
    __builtin_memcpy(&h, &v, sizeof v);
    constexpr Places<0, 1, 2, 3, 4, 5, 6, 7> low;
    constexpr Places<8, 9, 10, 11, 12, 13, 14, 15> high;
    const auto lower = shuffled<Lane>(h[0], h[1], low), upper = shuffled<Lane>(h[0], h[1], high);
    h[0] = lower, h[1] = upper;
    __builtin_memcpy(&v, &h, sizeof v);
    return v;
  }
#endif
  return shuffled<Lane>(v, v, Places<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>{});
}

// The tree of `reduce` from where a row of n ends; the result is in the row's first lane.
template <int n, class V, class Op> BRRR_VX V reduce_each(V v, Op op) {
  if constexpr (n > 4) v = op(v, shuffle<Further<4>>(v));
  if constexpr (n > 2) v = op(v, shuffle<Further<2>>(v));
  if constexpr (n > 1) v = op(v, shuffle<Further<1>>(v));
  return v;
}
// The rows' first lanes as numbers, one after the other; such numbers for all lanes of their rows.
template <int n, class V> BRRR_VX V first_of_each(V v) { return shuffle<FirstOf<n>>(v); }
template <int n, class V> BRRR_VX V for_each(V v) { return shuffle<Row<n>>(v); }
// Stores such numbers of the rows in the first `some` lanes.
template <int n, class V, class T> BRRR_VX void store_each(T* p, V v, int some) {
  if (some == lanes)
    __builtin_memcpy(p, &v, lanes / n * sizeof(T));
  else
    store_first(p, v, some / n);
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_ROWS_H
