#pragma once
// A row's elements combined, in the order of ops/kinds/reduction.h ("rows"). Generated kernels have
// texts of their own for it (ops/program/cpu_text.h), which compile in a fraction of the time.

#include "ops/vocabulary/vec_rows.h"

namespace brrr::vx {

constexpr long kFoldChunk = 4096;  ///< Elements that four vectors take.

/// Whether dense rows of n elements are taken several to a vector: each would take what a whole
/// vector takes.
inline bool lie_together(long rows, long n) {
  return rows > 1 && n > 0 && n < lanes && (n & (n - 1)) == 0;
}
template <int n> struct Length { static constexpr int value = n; };
/// f(a constant that is n), of such rows.
template <class F> [[gnu::always_inline]] inline auto with_length(long n, const F& f) {
  if (n > 2) return n == 4 ? f(Length<4>{}) : f(Length<8>{});
  return n == 1 ? f(Length<1>{}) : f(Length<2>{});
}
/// Such rows, each combined from `init`; f(i, lanes) gives elements from i on.
template <class V, class Combine, class F>
[[gnu::always_inline]] inline void fold_together(long rows, long n, V init, Combine combine,
                                                 const F& f, Element<V>* to) {
  for (long i = 0; i < rows * n; i += lanes) {
    const int some = rows * n - i < lanes ? static_cast<int>(rows * n - i) : lanes;
    const Parts<V> v = combine(init, f(i, some));
    with_length(
        n, [=](auto length) __attribute__((always_inline)) {
          constexpr int each = decltype(length)::value;
          store_each<each>(to + i / each, first_of_each<each>(reduce_each<each>(v.get(), combine)),
                           some);
        });
  }
}

/// Elements [i, end) of a row, at most kFoldChunk, combined from `init`.
template <class V, class Combine, class F>
[[gnu::always_inline]] inline Element<V> fold_chunk_inline(long i, long end, V init,
                                                           Combine combine, const F& f) {
  if (end - i <= 16) {
    const int lanes = static_cast<int>(end - i);
    return reduce(combine(init, where(first_lanes(lanes), f(i, lanes), init)), combine);
  }
  Parts<V> a0 = init, a1 = init, a2 = init, a3 = init;
  for (; i + 64 <= end; i += 64) {
    a0 = combine(a0.get(), f(i, 16));
    a1 = combine(a1.get(), f(i + 16, 16));
    a2 = combine(a2.get(), f(i + 32, 16));
    a3 = combine(a3.get(), f(i + 48, 16));
  }
  auto tail = [&](Parts<V> & a) __attribute__((always_inline)) {
    if (i >= end) return;
    const int lanes = end - i < 16 ? static_cast<int>(end - i) : 16;
    a = combine(a.get(), where(first_lanes(lanes), f(i, lanes), init));
    i += 16;
  };
  tail(a0);
  tail(a1);
  tail(a2);
  tail(a3);
  return reduce(combine(combine(a0.get(), a1.get()), combine(a2.get(), a3.get())), combine);
}
/// The same of rows [first, last), `row(r)` being what gives elements of one. One function per
/// lambda: a call for each of many short rows would be a third of their time.
template <class V, class Combine, class Row>
[[gnu::noinline, gnu::flatten]] void fold_chunk(const Row& row, long first, long last, long i,
                                                long end, V init, Combine combine, Element<V>* to) {
  for (long r = first; r < last; ++r) *to++ = fold_chunk_inline(i, end, init, combine, row(r));
}

/// All n elements of each row combined from `init`, an identity of `combine`.
template <class V, class Combine, class Row>
void fold_rows(const Row& row, long rows, long n, V init, Combine combine, Element<V>* to);

/// The results of a row's chunks, reduced as a row of their own. `chunk(context, k)` is the k-th:
/// behind a pointer, so that the recursion has one type.
template <class V, class Combine>
Element<V> fold_chunks(long chunks, V init, Combine combine, const void* context,
                       Element<V> (*chunk)(const void*, long)) {
  auto results = [&](long) {
    return [&](long i, int lanes) {
      V v = init;
      for (int j = 0; j < lanes; ++j) v[j] = chunk(context, i + j);
      return v;
    };
  };
  Element<V> all;
  fold_rows(results, 1, chunks, init, combine, &all);
  return all;
}

template <class V, class Combine, class Row>
void fold_rows(const Row& row, long rows, long n, V init, Combine combine, Element<V>* to) {
  if (n <= kFoldChunk) return fold_chunk(row, 0, rows, 0, n, init, combine, to);
  for (long r = 0; r < rows; ++r) {
    auto chunk = [&](long k) {
      const long begin = k * kFoldChunk;
      Element<V> all;
      fold_chunk(row, r, r + 1, begin, begin + kFoldChunk < n ? begin + kFoldChunk : n, init,
                 combine, &all);
      return all;
    };
    using Chunk = decltype(chunk);
    to[r] = fold_chunks<V, Combine>(
        (n + kFoldChunk - 1) / kFoldChunk, init, combine, &chunk,
        [](const void* c, long k) { return (*static_cast<const Chunk*>(c))(k); });
  }
}

}  // namespace brrr::vx
