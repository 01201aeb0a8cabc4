#pragma once
// A row op's lambda instantiated on vectors of several short rows (ops/vocabulary/vec_rows.h): a
// value is one vector, in which a per-row scalar fills all of its row's lanes.

#include "ops/kinds/row_kernel.h"
#include "ops/vocabulary/row.h"

namespace brrr::lanes {

template <class V, int n> struct TogetherReading;
/// Elements, or a mask, of rows of n elements, split into the registers that they take.
template <class V, int n, class X = Num<V>> struct Together {
  using Reading = TogetherReading<V, n>;
  [[gnu::always_inline]] Together(X x) : parts_(raw(x)) {}  // NOLINT(google-explicit-constructor)
  [[gnu::always_inline]] X x() const { return {parts_.get()}; }

 private:
  [[gnu::always_inline]] static V raw(Num<V> x) { return x.v; }
  [[gnu::always_inline]] static vx::b16 raw(Mask<V> x) { return x.m; }
  vx::Parts<decltype(raw(X{}))> parts_;
};

// Everything is inlined, as in Num.
template <class V, int n> struct TogetherReading {
  using Value = Together<V, n>;
  template <class A> static auto term(const A& a) {
    if constexpr (RowValue<A>)
      return a.x();
    else
      return Num<V>(static_cast<Lane<V>>(a));
  }
  template <class F, class... A> [[gnu::always_inline]] static auto lift(const A&... a) {
    const auto y = F{}(term(a)...);
    return Together<V, n, std::remove_const_t<decltype(y)>>{y};
  }
  template <class F> [[gnu::always_inline]] static Value fold(const Value& e, double identity) {
    const auto combine = [](V a, V b) __attribute__((always_inline)) {
      return F{}(Num<V>(a), Num<V>(b)).v;
    };
    const V v = combine(vx::splat(static_cast<Lane<V>>(identity)), e.x().v);
    return Num<V>(vx::shuffle<vx::Begin<n>>(vx::reduce_each<n>(v, combine)));
  }
  static Value length(const Value&) { return Num<V>(vx::splat(static_cast<Lane<V>>(n))); }
  template <class E> static E constant(const E& e) { return e; }
};

/// `lanes` elements of the rows from element `at` on, or the scalars of those rows. A null
/// operand, which is not needed, reads as 0.
template <class V, int n, Operand O>
[[gnu::always_inline]] inline Together<V, n> together_operand(const RowSource& s, int k, int64_t at,
                                                              int lanes) {
  static constexpr Lane<V> zeros[vx::lanes] = {};
  if constexpr (O == Operand::Scalar) {
    return Num<V>(vx::splat(static_cast<Lane<V>>(s.scalar[k])));
  } else {
    const auto* p = static_cast<const Lane<V>*>(s.in[k]);
    if (!p) p = zeros, at = 0;
    if constexpr (O == Operand::Each) return Num<V>(take<V>(p + at, lanes));
    if constexpr (O == Operand::PerRow)
      return Num<V>(vx::for_each<n>(vx::load_n(p + at / n, lanes / n)));
    if constexpr (is_shared(O)) return Num<V>(vx::shuffle<vx::Place<n>>(vx::load_n(p, n)));
    if constexpr (O == Operand::Number) return Num<V>(vx::splat(*p));
  }
}
/// Stores such a result.
template <class V, int n, Operand O>
[[gnu::always_inline]] inline void put_together(const Together<V, n>& r, void* to, int64_t at,
                                                int lanes) {
  auto* const p = static_cast<Lane<V>*>(to);
  if constexpr (O == Operand::Each)
    put<V>(p + at, r.x().v, lanes);
  else
    vx::store_each<n>(p + at / n, vx::first_of_each<n>(r.x().v), lanes);
}

}  // namespace brrr::lanes
