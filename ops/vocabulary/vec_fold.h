#pragma once
// A row's elements combined, in the order of ops/kinds/reduction.h ("rows"). Generated kernels have
// texts of their own for it (ops/program/cpu_text.h), which compile in a fraction of the time.

#include "ops/vocabulary/vec.h"

namespace brrr::vx {

constexpr long kFoldChunk = 4096;  ///< Elements that four vectors take.

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

/// Elements [begin, begin + span) of row r as far as it has them, `span` being a power of
/// kFoldChunk: its chunks' results are reduced as a row of their own.
template <class V, class Combine, class Row>
[[gnu::noinline]] Element<V> fold_span(const Row& row, long r, long begin, long span, long n,
                                       V init, Combine combine) {
  Element<V> all;
  const long end = begin + span < n ? begin + span : n, part = span / kFoldChunk;
  if (part == 1) {
    fold_chunk(row, r, r + 1, begin, end, init, combine, &all);
    return all;
  }
  auto results = [&](long) {
    return [&](long i, int lanes) {
      V v = init;
      for (int j = 0; j < lanes; ++j) {
        v[j] = fold_span(row, r, begin + (i + j) * part, part, n, init, combine);
      }
      return v;
    };
  };
  fold_chunk(results, 0, 1, 0, (end - begin + part - 1) / part, init, combine, &all);
  return all;
}

/// All n elements of each row combined from `init`, an identity of `combine`.
template <class V, class Combine, class Row>
void fold_rows(const Row& row, long rows, long n, V init, Combine combine, Element<V>* to) {
  if (n <= kFoldChunk) return fold_chunk(row, 0, rows, 0, n, init, combine, to);
  long span = kFoldChunk;
  while (span < n) span *= kFoldChunk;
  for (long r = 0; r < rows; ++r) to[r] = fold_span(row, r, 0, span, n, init, combine);
}

}  // namespace brrr::vx
