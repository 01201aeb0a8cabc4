// The CPU vector prelude, part 8: lanes combined with each other. A vector holds a row, or 16 / n
// adjacent short rows of n elements, n being a power of two.
#ifndef BRRR_OPS_VEC_ROWS_H
#define BRRR_OPS_VEC_ROWS_H

#include "ops/vocabulary/vec.h"

namespace brrr::vx {

// The source lane of lane i: Further, `by` lanes on in its row; Begin, the first lane of its row;
// Place, its place in the first row; FirstOf, the first lane of row i; Row, the number of its row.
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
// g++ 12 shuffles a vector of two registers lane by lane, so each one is shuffled by itself.
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

// The fixed tree, from a row's length n on: lane i with lane i + 8, then + 4, + 2, + 1. `op` takes
// and returns whole vectors; the result is in the row's first lane, the others are unspecified.
template <int n, class V, class Op> BRRR_VX V reduce_each(V v, Op op) {
  if constexpr (n > 8) v = op(v, shuffle<Further<8>>(v));
  if constexpr (n > 4) v = op(v, shuffle<Further<4>>(v));
  if constexpr (n > 2) v = op(v, shuffle<Further<2>>(v));
  if constexpr (n > 1) v = op(v, shuffle<Further<1>>(v));
  return v;
}
// The same for a row of 16. Of several registers only those that hold a result are combined: `op`
// gets copies of one register, whose results g++ computes once.
template <class V, class Op> BRRR_VX auto reduce(V v, Op op) {
  using P = typename Part<Element<V>>::type;
  constexpr int parts = sizeof(V) / sizeof(P);
  if constexpr (BRRR_VX_BYTES >= 32 && parts > 1) {
    P r[parts];
    __builtin_memcpy(&r, &v, sizeof v);
    const auto combine = [&](P a, P b) __attribute__((always_inline)) {
      P x[parts], y[parts];
      for (int i = 0; i < parts; ++i) x[i] = a, y[i] = b;
      V low, high;
      __builtin_memcpy(&low, &x, sizeof low);
      __builtin_memcpy(&high, &y, sizeof high);
      low = op(low, high);
      __builtin_memcpy(&x, &low, sizeof low);
      return x[0];
    };
    if constexpr (parts == 4) r[0] = combine(r[0], r[2]), r[1] = combine(r[1], r[3]);
    P h = combine(r[0], r[1]);
    if constexpr (parts == 4) {
      constexpr Places<0, 1, 2, 3> all;
      h = combine(h, shuffled<Further<2>>(h, h, all));
      return combine(h, shuffled<Further<1>>(h, h, all))[0];
    } else {
      constexpr Places<0, 1, 2, 3, 4, 5, 6, 7> all;
      h = combine(h, shuffled<Further<4>>(h, h, all));
      h = combine(h, shuffled<Further<2>>(h, h, all));
      return combine(h, shuffled<Further<1>>(h, h, all))[0];
    }
  } else {
    return reduce_each<lanes>(v, op)[0];
  }
}
// The rows' first lanes as consecutive scalars; such scalars in all lanes of their rows.
template <int n, class V> BRRR_VX V first_of_each(V v) { return shuffle<FirstOf<n>>(v); }
template <int n, class V> BRRR_VX V for_each(V v) { return shuffle<Row<n>>(v); }
// Stores such scalars of the rows in the first `some` lanes.
template <int n, class V, class T> BRRR_VX void store_each(T* p, V v, int some) {
  if (some == lanes)
    __builtin_memcpy(p, &v, lanes / n * sizeof(T));
  else
    store_first(p, v, some / n);
}

}  // namespace brrr::vx

#endif  // BRRR_OPS_VEC_ROWS_H
