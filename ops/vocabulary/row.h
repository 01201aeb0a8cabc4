#pragma once
// row::, a row op's functions of whole rows, and m:: for the values its lambda computes with.
//
// A value of such a lambda varies from element to element, from row to row, or not at all. Its type
// is the reading's, for which the lambda is instantiated: an expression over vectors (eager
// kernels), doubles (the oracle), tensors (the differentiable form) or symbols (source text). A
// reading defines `lift<F>(a...)`, F applied elementwise, and the functions of row:: below.

#include <type_traits>

#include "ops/vocabulary/scalar_math.h"

namespace brrr {

template <class T>
concept RowValue = requires {
  typename T::Reading;
};
template <class T>
concept RowTerm = RowValue<T> || std::is_arithmetic_v<T>;

template <class... A> struct ReadingOf;
template <class A, class... B> struct ReadingOf<A, B...> : ReadingOf<B...> {};
template <RowValue A, class... B> struct ReadingOf<A, B...> { using type = typename A::Reading; };
template <class F, class... A> [[gnu::always_inline]] inline auto lift(const A&... a) {
  return ReadingOf<A...>::type::template lift<F>(a...);
}

// Elementwise functions as types, and the operators and functions of m:: that lift them. `chain`: a
// long chain of operations, whose result is worth keeping.
#define BRRR_OPERATOR(Name, sign)                                                        \
  namespace lifted {                                                                     \
  struct Name {                                                                          \
    static constexpr bool chain = false;                                                 \
    template <class A, class B>                                                          \
    [[gnu::always_inline]] auto operator()(const A& a, const B& b) const {               \
      return a sign b;                                                                   \
    }                                                                                    \
  };                                                                                     \
  }                                                                                      \
  template <RowTerm A, RowTerm B>                                                        \
  requires(RowValue<A> || RowValue<B>) [[gnu::always_inline]] inline auto operator sign( \
      const A& a, const B& b) {                                                          \
    return lift<lifted::Name>(a, b);                                                     \
  }
BRRR_OPERATOR(Add, +)
BRRR_OPERATOR(Subtract, -)
BRRR_OPERATOR(Multiply, *)
BRRR_OPERATOR(Divide, /)
BRRR_OPERATOR(Less, <)
BRRR_OPERATOR(LessEqual, <=)
BRRR_OPERATOR(Greater, >)
BRRR_OPERATOR(GreaterEqual, >=)
BRRR_OPERATOR(Equal, ==)
BRRR_OPERATOR(NotEqual, !=)
BRRR_OPERATOR(And, &)
BRRR_OPERATOR(Or, |)
#undef BRRR_OPERATOR

#define BRRR_FUNCTION(name, flops, chains, ...)                                         \
  namespace lifted {                                                                    \
  struct name {                                                                         \
    static constexpr bool chain = chains > 0;                                           \
    template <class... A> [[gnu::always_inline]] auto operator()(const A&... a) const { \
      return m::name(a...);                                                             \
    }                                                                                   \
  };                                                                                    \
  }                                                                                     \
  namespace m {                                                                         \
  template <RowTerm... A>                                                               \
  requires(RowValue<A> || ...) [[gnu::always_inline]] inline auto name(const A&... a) { \
    return lift<lifted::name>(a...);                                                    \
  }                                                                                     \
  }
BRRR_FUNCTIONS_OF_ONE(BRRR_FUNCTION)
BRRR_FUNCTIONS_OF_TWO(BRRR_FUNCTION)
BRRR_FUNCTION(fma, 2, 0)
BRRR_FUNCTION(where, 0, 0)
#undef BRRR_FUNCTION
#undef BRRR_FUNCTIONS_OF_ONE
#undef BRRR_FUNCTIONS_OF_TWO

namespace lifted {
struct Negate {
  static constexpr bool chain = false;
  template <class A> [[gnu::always_inline]] auto operator()(const A& a) const { return -a; }
};
// The larger and the smaller value. They ignore NaN, at half the cost of m::max and m::min: it
// still reaches the results through the sums.
struct Larger {
  static constexpr bool chain = false;
  template <class A> [[gnu::always_inline]] auto operator()(const A& a, const A& b) const {
    return m::where(a < b, b, a);
  }
};
struct Smaller {
  static constexpr bool chain = false;
  template <class A> [[gnu::always_inline]] auto operator()(const A& a, const A& b) const {
    return m::where(b < a, b, a);
  }
};
struct Square {
  static constexpr bool chain = false;
  template <class A> [[gnu::always_inline]] auto operator()(const A& a) const { return a * a; }
};
/// Folds the row's elements by F, from its identity on.
template <class F, class A> [[gnu::always_inline]] inline auto fold(A&& a, double identity) {
  return std::decay_t<A>::Reading::template fold<F>(std::forward<A>(a), identity);
}
}  // namespace lifted

template <RowValue A> auto operator-(const A& a) { return lift<lifted::Negate>(a); }

namespace m {
/// x * x, with x computed once.
template <RowValue A> auto square(const A& a) { return lift<lifted::Square>(a); }
/// The value as a constant: no gradient flows through it.
template <RowValue A> auto constant(const A& a) { return A::Reading::constant(a); }
}  // namespace m

namespace row {

/// Sum over the row, in the order of the device. An lvalue argument may be kept for its next use.
template <class A> [[gnu::always_inline]] inline auto sum(A&& a) {
  return lifted::fold<lifted::Add>(std::forward<A>(a), 0.0);
}
/// The largest and the smallest element. They ignore NaN; if the row has no other elements they are
/// -infinity and infinity.
template <class A> [[gnu::always_inline]] inline auto max(A&& a) {
  return lifted::fold<lifted::Larger>(std::forward<A>(a), -__builtin_inf());
}
template <class A> [[gnu::always_inline]] inline auto min(A&& a) {
  return lifted::fold<lifted::Smaller>(std::forward<A>(a), __builtin_inf());
}
/// The number of elements in the row.
template <RowValue A> auto count(const A& a) {
  const auto n = A::Reading::length(a);
  if constexpr (RowValue<decltype(n)>)
    return n;
  else
    return A::Reading::number(a, n);
}
template <class A> [[gnu::always_inline]] inline auto mean(A&& a) {
  const auto n = std::decay_t<A>::Reading::length(a);
  return sum(std::forward<A>(a)) / n;
}
/// Element `id` of the row; 0 if the id is ignored.
template <RowValue A, RowValue Id> auto pick(const A& a, const Id& id) {
  return A::Reading::pick(a, id);
}
/// A mask: whether an element is the row's `id`-th.
template <RowValue Id> auto is_at(const Id& id) { return Id::Reading::is_at(id); }
/// A mask: whether the id counts, that is, is not the one to ignore.
template <RowValue Id> auto counts(const Id& id) { return Id::Reading::counts(id); }
/// The sum over all rows of each of their elements: the gradient of an operand that the rows share.
/// Only a result.
template <RowValue A> auto over_rows(const A& a) { return A::Reading::over_rows(a); }
/// The sum of a per-row scalar over all rows. For results that are a single number.
template <RowValue A> auto total(const A& a) { return A::Reading::total(a); }

}  // namespace row

}  // namespace brrr
