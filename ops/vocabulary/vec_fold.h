#pragma once
// Folds a row's elements, in the order of ops/kinds/reduction.h ("rows"). Generated kernels have
// their own texts for it (ops/program/cpu_text.h), which compile in a fraction of the time.

#include "ops/vocabulary/vec_rows.h"

namespace brrr::vx {

constexpr long kFoldChunk = 4096;  ///< Elements that four vector accumulators fold.

/// Whether dense rows of n elements are folded several to a vector: one by one, each would cost as
/// much as a whole vector.
inline bool packs_rows(long rows, long n) {
  return rows > 1 && n > 0 && n < lanes && (n & (n - 1)) == 0;
}
template <int n> struct Length { static constexpr int value = n; };
/// f(Length<n>{}), for such rows.
template <class F> [[gnu::always_inline]] inline auto with_length(long n, const F& f) {
  if (n > 2) return n == 4 ? f(Length<4>{}) : f(Length<8>{});
  return n == 1 ? f(Length<1>{}) : f(Length<2>{});
}
/// Folds such rows, each from `init`; f(i, lanes) gives elements from i on.
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

/// Folds elements [i, end) of a row, at most kFoldChunk, from `init`.
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
/// The same for rows [first, last), `row(r)` giving the elements of row r. One function per lambda
/// loops over the rows: a call for each of many short rows would be a third of their time.
template <class V, class Combine, class Row>
[[gnu::noinline, gnu::flatten]] void fold_chunk(const Row& row, long first, long last, long i,
                                                long end, V init, Combine combine, Element<V>* to) {
  for (long r = first; r < last; ++r) *to++ = fold_chunk_inline(i, end, init, combine, row(r));
}

/// Folds elements [begin, end) of row r from `init`: its chunks, then their results as a row of
/// their own.
template <class V, class Combine, class Row>
Element<V> fold_chunks(const Row& row, long r, long begin, long end, V init, Combine combine) {
  long each = kFoldChunk, chunks = 0;  // Elements of a chunk, or of a subtree of chunks.
  while (end - begin > each * kFoldChunk) each *= kFoldChunk;
  Element<V> results[kFoldChunk], all;
  for (long i = begin; i < end; i += each, ++chunks) {
    const long last = i + each < end ? i + each : end;
    if (each > kFoldChunk)
      results[chunks] = fold_chunks(row, r, i, last, init, combine);
    else
      fold_chunk(row, r, r + 1, i, last, init, combine, results + chunks);
  }
  const auto of_results = [&](long) {
    return [&](long i, int lanes) { return load_n(results + i, lanes); };
  };
  fold_chunk(of_results, 0, 1, 0, chunks, init, combine, &all);
  return all;
}

/// Folds all n elements of each row from `init`, an identity of `combine`.
template <class V, class Combine, class Row>
void fold_rows(const Row& row, long rows, long n, V init, Combine combine, Element<V>* to) {
  if (n <= kFoldChunk) return fold_chunk(row, 0, rows, 0, n, init, combine, to);
  for (long r = 0; r < rows; ++r) to[r] = fold_chunks(row, r, 0, n, init, combine);
}

}  // namespace brrr::vx
