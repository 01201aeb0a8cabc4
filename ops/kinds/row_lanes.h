#pragma once
// A row op's lambda instantiated on vectors: operands are lazy expressions, a fold runs over a
// block of rows when it is called, and the lambda's results are evaluated in one last pass.
//
// Every expression has a level: how it varies. One of elements is bound to a row (`bind(r)`) and
// then gives that row's vectors; one of rows can also be evaluated across a block, a row per lane.

#include <tuple>

#include "core/check.h"
#include "ops/kinds/row_info.h"
#include "ops/kinds/row_kernel.h"
#include "ops/vocabulary/row.h"

namespace brrr::lanes {

enum class Level : uint8_t { Number, Row, Element };

/// The rows that one kernel call computes.
template <class V> struct Block {
  static constexpr int kMaxRowScalars = 24;
  int64_t rows, n;
  Lane<V>* spare;  ///< Room to keep one Chain's elements, null once used: a result's memory,
                   ///< or `short_rows` if rows are shorter than a vector (stored whole).
  int used = 0;
  V short_rows[kRowBlock];
  V row_scalars[kMaxRowScalars];  ///< A row per lane.
  Block(int64_t count, int64_t length, Lane<V>* room) : rows(count), n(length), spare(room) {
    if (length < vx::lanes) spare = reinterpret_cast<Lane<V>*>(short_rows);
  }
  /// Elements from one row in `spare` to the next.
  static int64_t pitch(int64_t length) { return std::max<int64_t>(length, vx::lanes); }
  /// Room for a scalar of each row.
  Lane<V>* new_row_scalars() {
    if (used == kMaxRowScalars)
      fail(
          "row op: its lambda needs more than {} intermediate scalars per row; split it into two "
          "row ops",
          kMaxRowScalars);
    return reinterpret_cast<Lane<V>*>(&row_scalars[used++]);
  }
};

template <class V> struct Reading;

// Lets ADL find these operators even where a user's namespace has operators of its own.
using brrr::operator+, brrr::operator-, brrr::operator*, brrr::operator/;
using brrr::operator<, brrr::operator<=, brrr::operator>, brrr::operator>=;
using brrr::operator==, brrr::operator!=, brrr::operator&, brrr::operator|;

/// The base of all expressions.
template <class V, Level L> struct Expression {
  using Reading = lanes::Reading<V>;
  static constexpr Level level = L;
  static constexpr Operand kind = L == Level::Element ? Operand::Each
                                  : L == Level::Row   ? Operand::PerRow
                                                      : Operand::Number;  ///< As a result.
  static constexpr bool chain = false;  ///< Contains a Chain, which a fold may have kept.
  bool kept() const { return true; }
};

/// The bound form of an expression that is constant within a row.
template <class X> struct Same {
  X x;
  [[gnu::always_inline]] X at(int64_t, int) const { return x; }
};

/// One value for all rows.
template <class V> struct Number : Expression<V, Level::Number> {
  Lane<V> x;
  explicit Number(Lane<V> v) : x(v) {}
  Block<V>* block() const { return nullptr; }
  template <bool> Same<Num<V>> bind(int64_t, int64_t) const { return {vx::splat(x)}; }
  Num<V> across() const { return vx::splat(x); }
};

/// Elements in memory, row after row, or one row that all rows share.
template <class V, bool shared = false> struct Elements : Expression<V, Level::Element> {
  const Lane<V>* p;
  Block<V>* rows;
  Elements(const Lane<V>* from, Block<V>* b) : p(from), rows(b) {}
  struct Bound {
    const Lane<V>* p;
    [[gnu::always_inline]] Num<V> at(int64_t i, int n) const { return take<V>(p + i, n); }
  };
  Block<V>* block() const { return rows; }
  template <bool> Bound bind(int64_t r, int64_t n) const { return {shared ? p : p + r * n}; }
};

/// A scalar of each row: in memory, or computed.
template <class V> struct PerRow : Expression<V, Level::Row> {
  const Lane<V>* p;
  Block<V>* rows;
  PerRow(const Lane<V>* from, Block<V>* b) : p(from), rows(b) {}
  Block<V>* block() const { return rows; }
  template <bool> Same<Num<V>> bind(int64_t r, int64_t) const { return {vx::splat(p[r])}; }
  Num<V> across() const { return take<V>(p, static_cast<int>(rows->rows)); }
};

/// An int64 of each row: the index of one of its elements, unless it is `ignored`.
template <class V> struct Ids : Expression<V, Level::Row> {
  const int64_t* p;
  int64_t ignored;
  Block<V>* rows;
  Ids(const int64_t* from, int64_t none, Block<V>* b) : p(from), ignored(none), rows(b) {}
  Block<V>* block() const { return rows; }
  bool counts(int64_t r) const { return p[r] != ignored; }
};
template <class V> struct Counts : Expression<V, Level::Row> {
  Ids<V> ids;
  explicit Counts(const Ids<V>& i) : ids(i) {}
  Block<V>* block() const { return ids.rows; }
  template <bool> Same<Mask<V>> bind(int64_t r, int64_t) const {
    return {{vx::first_lanes(ids.counts(r) ? 16 : 0)}};
  }
  Mask<V> across() const {
    const auto n = static_cast<int>(ids.rows->rows);
    return {vx::ne(vx::load_n(reinterpret_cast<const long*>(ids.p), n),
                   vx::splat(static_cast<long>(ids.ignored)))};
  }
};
template <class V> struct IsAt : Expression<V, Level::Element> {
  Ids<V> ids;
  explicit IsAt(const Ids<V>& i) : ids(i) {}
  struct Bound {
    int64_t id;
    [[gnu::always_inline]] Mask<V> at(int64_t i, int) const {
      constexpr vx::i32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      return {vx::eq(lane, vx::splat(static_cast<int>(id - i)))};
    }
  };
  Block<V>* block() const { return ids.rows; }
  template <bool> Bound bind(int64_t r, int64_t) const { return {ids.p[r]}; }
};

/// F applied to other expressions.
template <class V, class F, Level L, class... A> struct Apply : Expression<V, L> {
  static constexpr bool chain = (A::chain || ...);
  std::tuple<A...> a;
  explicit Apply(const A&... x) : a(x...) {}

  template <class... B> struct Bound {
    std::tuple<B...> a;
    [[gnu::always_inline]] auto at(int64_t i, int n) const {
      return [&]<size_t... K>(std::index_sequence<K...>) __attribute__((always_inline)) {
        return F{}(std::get<K>(a).at(i, n)...);
      }
      (std::index_sequence_for<B...>{});
    }
  };
  Block<V>* block() const {
    Block<V>* found = nullptr;
    std::apply([&](const A&... x) { ((found = found ? found : x.block()), ...); }, a);
    return found;
  }
  bool kept() const {
    return std::apply([](const A&... x) { return (x.kept() && ...); }, a);
  }
  template <bool Kept> auto bind(int64_t r, int64_t n) const {
    return std::apply(
        [&](const A&... x) {
          auto bound = [](auto... b) { return Bound<decltype(b)...>{{b...}}; };
          const auto all = bound(x.template bind<Kept>(r, n)...);
          if constexpr (L == Level::Element)
            return all;
          else
            return Same<decltype(all.at(0, 16))>{all.at(0, 16)};
        },
        a);
  }
  auto across() const requires(L < Level::Element) {
    return std::apply([](const A&... x) { return F{}(x.across()...); }, a);
  }
};

/// A long computation of elements, whose values a fold may have kept at `at`.
template <class V, class F, class... A> struct Chain : Expression<V, Level::Element> {
  static constexpr bool chain = true;
  Apply<V, F, Level::Element, A...> x;
  mutable const Lane<V>* at = nullptr;
  explicit Chain(const A&... a) : x(a...) {}
  Block<V>* block() const { return x.block(); }
  bool kept() const { return at; }
  template <bool Kept> auto bind(int64_t r, int64_t n) const {
    if constexpr (Kept)
      return Elements<V>(at, block()).template bind<true>(r, Block<V>::pitch(n));
    else
      return x.template bind<false>(r, n);
  }
};
template <class E> inline constexpr bool kIsChain = false;
template <class V, class F, class... A> inline constexpr bool kIsChain<Chain<V, F, A...>> = true;

/// The sum over all rows of each column. Only a result.
template <class E> struct Columns {
  static constexpr Operand kind = Operand::Column;
  static constexpr bool chain = E::chain;
  E x;
  bool kept() const { return x.kept(); }
  template <bool Kept> auto bind(int64_t r, int64_t n) const { return x.template bind<Kept>(r, n); }
};
/// The sum over all rows of a per-row scalar.
template <class V, class E> struct Total : Expression<V, Level::Number> {
  E x;
  explicit Total(const E& e) : x(e) {}
  mutable Num<V> sum{};  ///< The rows' addends, added up.
  Block<V>* block() const { return x.block(); }
  Num<V> across() const { return sum; }
};

template <class V> struct Reading {
  template <class A> static auto term(const A& a) {
    if constexpr (RowValue<A>)
      return a;
    else
      return Number<V>(static_cast<Lane<V>>(a));
  }
  template <class F, class... A> static auto lift(const A&... a) { return apply<F>(term(a)...); }

  template <class F, class E> static PerRow<V> fold(E&& e, double identity) {
    using T = std::decay_t<E>;
    static_assert(T::level != Level::Number,
                  "a single number has no row to fold; for its sum over a "
                  "row multiply it by row::count() of an operand");
    const V init = vx::splat(static_cast<Lane<V>>(identity));
    const Combined<F> combine;
    Block<V>& b = *e.block();
    Lane<V>* const to = b.new_row_scalars();
    if constexpr (kIsChain<T> && std::is_lvalue_reference_v<E>) {
      if (b.spare && !e.at) {
        e.at = std::exchange(b.spare, nullptr);
        fold_rows<false>(e.x, b, init, combine, to, const_cast<Lane<V>*>(e.at));
        return {to, &b};
      }
    }
    if constexpr (T::chain) {
      if (!e.kept()) {
        fold_rows<false, T>(e, b, init, combine, to);
        return {to, &b};
      }
    }
    fold_rows<true, T>(e, b, init, combine, to);
    return {to, &b};
  }
  template <class E> static Number<V> length(const E& e) {
    return Number<V>(static_cast<Lane<V>>(e.block()->n));
  }
  template <class E> static const E& constant(const E& e) { return e; }
  template <class E> static PerRow<V> pick(const E& e, const Ids<V>& ids) {
    Block<V>& b = *ids.rows;
    Lane<V>* const to = b.new_row_scalars();
    for (int64_t r = 0; r < b.rows; ++r) {
      to[r] = ids.counts(r) ? e.template bind<false>(r, b.n).at(ids.p[r], 1).v[0] : Lane<V>(0);
    }
    return {to, &b};
  }
  static Counts<V> counts(const Ids<V>& ids) { return Counts<V>(ids); }
  static IsAt<V> is_at(const Ids<V>& ids) { return IsAt<V>(ids); }
  template <class E> static Columns<E> over_rows(const E& e) { return {e}; }
  template <class E> static Total<V, E> total(const E& e) {
    static_assert(E::level < Level::Element,
                  "row::total adds up a scalar per row; reduce elements with row::sum first");
    return Total<V, E>(e);
  }

 private:
  template <class F, class... A> static auto apply(const A&... a) {
    constexpr Level level = std::max({A::level...});
    using Lazy = Apply<V, F, level, A...>;
    if constexpr (F::chain && level == Level::Element)
      return Chain<V, F, A...>(a...);
    else if constexpr (level == Level::Row && requires(const Lazy& x) { x.across().v; })
      return computed(Lazy(a...));
    else
      return Lazy(a...);
  }

  // Per-row scalars are computed once, all rows of the block in one vector.
  template <class E> static PerRow<V> computed(const E& e) {
    Block<V>& b = *e.block();
    Lane<V>* const to = b.new_row_scalars();
    if (b.rows == 1)  // A vector load of a scalar just stored would stall.
      *to = e.template bind<true>(0, b.n).x.v[0];
    else
      vx::store(to, e.across().v);
    return {to, &b};
  }

  template <class F> struct Combined {
    [[gnu::always_inline]] V operator()(V a, V b) const { return F{}(Num<V>(a), Num<V>(b)).v; }
  };
  // `e` is passed by value: no store can alias it. `keep`: where to store its elements, or null.
  template <bool Kept, class E, class Combine, class Keep = std::nullptr_t>
  static void fold_rows(const E e, const Block<V>& b, V init, Combine combine, Lane<V>* to,
                        Keep keep = nullptr) {
    vx::fold_rows(
        [e, keep, n = b.n](long r) {
          Keep own = keep;  // Of this row.
          if constexpr (std::is_pointer_v<Keep>) own += r * Block<V>::pitch(n);
          const auto x = e.template bind<Kept>(r, n);
          return [=](int64_t i, int lanes) __attribute__((always_inline)) {
            const V v = x.at(i, lanes).v;
            if constexpr (std::is_pointer_v<Keep>)
              put<V>(own + i, v, n < vx::lanes ? vx::lanes : lanes);
            return v;
          };
        },
        b.rows, b.n, init, combine, to);
  }
};

}  // namespace brrr::lanes
