#pragma once
// Operand and result types of a pointwise row's lambda, and the vectorised CPU loop that is
// instantiated from it.

#include <cstring>
#include <tuple>
#include <utility>

#include "core/op.h"
#include "ops/vocabulary/scalar_math.h"

namespace brrr {

inline constexpr int kMaxOperands = kMaxAttrs;
inline constexpr int kMaxMade = 2;
/// Operands that are int64 whatever their row computes in. Bit i of `Given`: operand i of a call is
/// one int64 that all elements share (a seed, counter, diagonal). The `Made` operands follow the
/// given ones; no call passes them, each element derives them from its position: kNumber is its
/// row-major index, 1 its index in the last dim, 2 in the last but one. Integers stand between a
/// row's traits and its lambdas:
///
///   const NumberOp tril{"tril", "...", {}, Integers<0b10, 2, 1>{},
///                       [](auto x, auto diagonal, auto row, auto column) {
///                         return m::where(column <= row + diagonal, x, 0.0);
///                       }};
///
/// A gradient's lambda takes y and g before the made operands; it may use scalars and g alone.
template <uint32_t Given = 0, int... Made> struct Integers {
  static constexpr uint32_t given = Given;
  static constexpr int made = sizeof...(Made);
  static constexpr int place[kMaxMade + 1] = {Made...};
  static constexpr bool any = Given || made;
};
inline constexpr int kNumber = 0;

template <class X> inline constexpr bool kIsMask = false;
template <class V> inline constexpr bool kIsMask<Mask<V>> = true;
template <> inline constexpr bool kIsMask<SymMask> = true;

/// The type of an int64 operand where the others are T.
template <class T> struct IndexTypeOf { using type = T; };
template <class V> struct IndexTypeOf<Num<V>> { using type = m::Index; };
template <> struct IndexTypeOf<Sym> { using type = SymIndex; };

/// The operands of a lambda: N of them, made ones included.
template <int N, class P> struct RowOperands {
  static constexpr int count = N, given = N - P::made;
  using Kinds = P;
  static constexpr auto all = std::make_index_sequence<N>{};
  static constexpr bool is_made(size_t i) { return i >= static_cast<size_t>(given); }
  static constexpr bool is_integer(size_t i) { return is_made(i) || (P::given >> i & 1); }
  static constexpr uint32_t integers = P::given | ((1u << P::made) - 1) << given;
  template <class T, size_t I>
  using Type = std::conditional_t<is_integer(I), typename IndexTypeOf<T>::type, T>;
  /// The operands of a gradient: y and g come before the made ones.
  using Gradient = RowOperands<N + 2, P>;
};

template <class F, class O, class T, size_t... I> constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<F, typename O::template Type<T, I>...>;
}
/// The operands of the lambda F: the smallest N that it can be called with, all operands being T.
template <class F, class P, class T = Num<vx::f32>, int N = P::made>
constexpr auto operands_of_lambda() {
  using O = RowOperands<N, P>;
  if constexpr (takes<F, O, T>(O::all))
    return O{};
  else
    return operands_of_lambda<F, P, T, N + 1>();
}
template <class F, class P> using OperandsOf = decltype(operands_of_lambda<F, P>());

template <class R> [[gnu::always_inline]] inline auto as_tuple(R r) {
  if constexpr (requires { std::tuple_size<R>::value; })
    return r;
  else
    return std::tuple{r};
}
template <size_t I> using Nth = std::integral_constant<size_t, I>;
/// f(operand(Nth<0>), ...) as a tuple.
template <class F, class O, class X>
[[gnu::always_inline]] inline auto row_outputs(const X& operand) {
  return [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
    return as_tuple(F{}(operand(Nth<I>{})...));
  }
  (O::all);
}
template <class F, class O, class T, size_t... I> auto outputs_type(std::index_sequence<I...>) {
  return as_tuple(F{}(typename O::template Type<T, I>{}...));
}
/// The outputs as a tuple, for operands of type T.
template <class F, class O, class T> using OutputsType = decltype(outputs_type<F, O, T>(O::all));

// The type that elements S are loaded and stored as. Bytes are computed in int32.
template <class S> using StoredAs = std::conditional_t<sizeof(S) == 1, unsigned char, S>;

template <class S, bool Tail, class X>
[[gnu::always_inline]] inline void store_lane(char* out, int64_t i, X x, int n) {
  const auto store = [=](auto* p, auto v) __attribute__((always_inline)) {
    if constexpr (Tail)
      vx::store_n(p + i, v, n);
    else
      vx::store(p + i, v);
  };
  if constexpr (kIsMask<X>)
    store(reinterpret_cast<unsigned char*>(out), vx::b16_to_bool(x.m));
  else if constexpr (std::is_same_v<S, bool>)
    store(reinterpret_cast<unsigned char*>(out), vx::b16_to_bool(vx::to_b16(x.v)));
  else if constexpr (sizeof(S) == 1)
    store(reinterpret_cast<unsigned char*>(out), vx::i32_to_u8(x.v));
  else
    store(reinterpret_cast<S*>(out), x.v);
}

template <class S, bool Tail, class... Y>
[[gnu::always_inline]] inline void store_lanes(char* const* out, int64_t i,
                                               const std::tuple<Y...>& y, int n) {
  [&]<size_t... K>(std::index_sequence<K...>) __attribute__((always_inline)) {
    (store_lane<S, Tail>(out[K], i, std::get<K>(y), n), ...);
  }
  (std::index_sequence_for<Y...>{});
}

/// Rows with so many operands, such as Adam's, mix few tensors with many scalars: keep the scalars
/// in registers. Reloaded for each vector they fill the processor's load queue and stall
/// independent work (AdamW took 8 ns for 16 elements instead of 2).
template <class O> inline constexpr bool kManyInputs = O::given > 8 && O::Kinds::made == 0;
inline constexpr int kTensorInputs = 4;

/// Does the whole vectors if the first kTensorInputs operands advance and all others are splats.
/// Returns the number of elements done.
template <class F, class V, class O>
[[gnu::flatten]] int64_t pointwise_many(char* const* out, const char* const* in,
                                        const int64_t* step, int64_t n) {
  for (int k = 0; k < O::given; ++k) {
    if (step[k] != (k < kTensorInputs ? 1 : 0)) return 0;
  }
  const auto load = [&](size_t k, int64_t i) __attribute__((always_inline)) {
    return Num<V>(vx::load(reinterpret_cast<const Lane<V>*>(in[k]) + i));
  };
  const auto numbers = [&]<size_t... K>(std::index_sequence<K...>) {
    return std::tuple{load(K + kTensorInputs, 0)...};
  }
  (std::make_index_sequence<O::given - kTensorInputs>{});
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto operand = [&](auto k) __attribute__((always_inline)) {
      if constexpr (k < kTensorInputs)
        return load(k, i);
      else
        return std::get<k - kTensorInputs>(numbers);
    };
    store_lanes<Lane<V>, false>(out, i, row_outputs<F, O>(operand), 16);
  }
  return i;
}

// Computes one vector of every operand (`n` lanes of it in a tail) into element i of the outputs.
// `integers` holds the integer operands.
template <class F, class V, class S, class O, bool Tail>
[[gnu::always_inline]] inline void pointwise_vector(char* const* out, const char* const* in,
                                                    const vx::Line* integers, int64_t i, int n) {
  const auto operand = [&](auto k) __attribute__((always_inline)) {
    using Type = typename O::template Type<Num<V>, k>;
    if constexpr (O::is_integer(k)) {
      return Type(integers[k]);
    } else {
      const auto load = [&]() __attribute__((always_inline)) {
        const auto* p = reinterpret_cast<const StoredAs<S>*>(in[k]);
        if constexpr (Tail)
          return vx::load_n(p, n);
        else
          return vx::load(p);
      };
      if constexpr (std::is_same_v<S, bool>)
        return Type(vx::mask_to_i32(vx::bool_to_b16(load())));
      else if constexpr (sizeof(S) == 1)
        return Type(vx::u8_to_i32(load()));
      else
        return Type(load());
    }
  };
  store_lanes<S, Tail>(out, i, row_outputs<F, O>(operand), n);
}

/// Whether made positions run as usual: from a multiple of 16 in steps of 1; of kind 2, constant.
template <class O> bool usual_positions(const char* const* in) {
  bool usual = true;
  for (int k = 0; k < O::Kinds::made; ++k) {
    const auto& p = *reinterpret_cast<const vx::Line*>(in[O::given + k]);
    usual &= O::Kinds::place[k] == 2 ? p.step == 0 : p.step == 1 && p.first % 16 == 0;
  }
  return usual;
}

/// Operand K as a line, if it is an integer. `Usual` lets the compiler assume step and alignment.
template <class O, bool Usual, size_t K>
[[gnu::always_inline]] inline vx::Line integer_operand(const char* const* in) {
  if constexpr (!O::is_integer(K)) {
    return 0;
  } else if constexpr (!O::is_made(K)) {
    return *reinterpret_cast<const int64_t*>(in[K]);
  } else {
    const auto p = *reinterpret_cast<const vx::Line*>(in[K]);
    if constexpr (!Usual)
      return p;
    else if constexpr (O::Kinds::place[K - O::given] == 2)
      return p.first;
    else
      return {p.first & ~15L, 1};
  }
}

// Flatten: a row with a draw is so long that its lambda is not inlined, with vectors in memory.
template <class F, class V, class S, class O, bool Usual>
[[gnu::flatten]] void pointwise_places(char* const* out, const char* const* in, const int64_t* step,
                                       int64_t n) {
  vx::Line integers[O::count + 1];
  [&]<size_t... K>(std::index_sequence<K...>) {
    ((integers[K] = integer_operand<O, Usual, K>(in)), ...);
  }
  (O::all);
  if (n < 16) return pointwise_vector<F, V, S, O, true>(out, in, integers, 0, static_cast<int>(n));
  // Copies that no store can alias: the compiler keeps what it can in registers.
  const char* at[O::given + 1];
  int64_t bytes[O::given + 1];
  char* to[kMaxOutputs];
  for (int k = 0; k < O::given; ++k) {
    at[k] = in[k];
    bytes[k] = step[k] * static_cast<int64_t>(16 * sizeof(S));
  }
  for (size_t k = 0; k < std::tuple_size_v<OutputsType<F, O, Num<V>>>; ++k) to[k] = out[k];
  int64_t i = 0;
  if constexpr (kManyInputs<O>) {
    i = pointwise_many<F, V, O>(to, at, step, n);
    for (int k = 0; k < O::given; ++k) at[k] += i / 16 * bytes[k];
  }
  for (; i + 16 <= n; i += 16) {
    pointwise_vector<F, V, S, O, false>(to, at, integers, i, 16);
    for (int k = 0; k < O::given; ++k) at[k] += bytes[k];
    for (int k = O::given; k < O::count; ++k) integers[k].first += 16 * integers[k].step;
  }
  if (i < n) pointwise_vector<F, V, S, O, true>(to, at, integers, i, static_cast<int>(n - i));
}

/// S is the element type in memory, V the vector type of the arithmetic.
template <class F, class V, class O, class S = Lane<V>>
void pointwise_loop(char* const* out, const char* const* in, const int64_t* step, int64_t n) {
  if (usual_positions<O>(in))
    pointwise_places<F, V, S, O, true>(out, in, step, n);
  else
    pointwise_places<F, V, S, O, false>(out, in, step, n);
}

/// The same for 16-bit elements that are only copied.
inline void move_16bits(char* const* out, const char* const* in, const int64_t* step, int64_t n) {
  auto* to = reinterpret_cast<uint16_t*>(*out);
  const auto* from = reinterpret_cast<const uint16_t*>(*in);
  if (*step) return (void)std::memcpy(to, from, static_cast<size_t>(n) * sizeof *to);
  const vx::u16 all = vx::splat(*from);
  int64_t i = 0;
  for (; i + vx::lanes <= n; i += vx::lanes) vx::store(to + i, all);
  if (i < n) vx::store_n(to + i, all, static_cast<int>(n - i));
}

}  // namespace brrr
