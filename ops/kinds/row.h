#pragma once
// The row op: a composite over rows, from one generic lambda forward and one for its gradient.
//
// (<brrr/row.h> has an example.) A row is the last dim of its operands, or the last few. The lambda
// takes the operands and returns one result, or up to four in a tuple: elements, a scalar per row,
// or (row::total, at most four of them) a single number. It may use up to 24 intermediate per-row
// scalars. The gradient lambda takes the operands, the results and the gradient of the first
// result, and returns the gradients of the first operands, in order and at most four; that of an
// operand that all rows share is a row::over_rows. Gradients of other results, and second
// derivatives, come from differentiating the lambdas as tensors. 16-bit floats are widened first
// and rounded once, at the end.
//
// The lambdas yield the CPU's vector kernels, the float64 oracle, the differentiable form and the
// tests. See ops/vocabulary/row.h for the functions they may use.

#include <cstring>

#include "ops/kinds/row_info.h"
#include "ops/kinds/row_lanes.h"
#include "ops/kinds/row_readings.h"
#include "ops/kinds/row_together.h"

namespace brrr {

// --- from lambdas to kernels ---------------------------------------------------------------------

namespace lanes {

template <class V, Operand O> auto operand(const RowSource& s, int k, int64_t first, Block<V>& b) {
  const auto* p = static_cast<const Lane<V>*>(s.in[k]);
  if constexpr (O == Operand::Each)
    return Elements<V>(p + first * s.n, &b);
  else if constexpr (O == Operand::PerRow)
    return PerRow<V>(p + first, &b);
  else if constexpr (is_shared(O))
    return Elements<V, true>(p, &b);
  else if constexpr (O == Operand::Number)
    return Number<V>(p ? *p : Lane<V>(0));
  else if constexpr (O == Operand::Scalar)
    return Number<V>(static_cast<Lane<V>>(s.scalar[k]));
  else
    return Ids<V>(static_cast<const int64_t*>(s.in[k]) + first, s.ignored[k], &b);
}

// The number of row::total() in an expression, and f(each of them).
template <class E> inline constexpr int kTotals = 0;
template <class V, class E> inline constexpr int kTotals<Total<V, E>> = 1;
template <class... R> inline constexpr int kTotals<std::tuple<R...>> = (kTotals<R> + ...);
template <class V, class F, Level L, class... A>
inline constexpr int kTotals<Apply<V, F, L, A...>> = (kTotals<A> + ...);
template <class V, class E, class F> void for_totals(const Total<V, E>& e, const F& f) { f(e); }
template <class E, class F> void for_totals(const E& e, const F& f) {
  if constexpr (kTotals < E >> 0)
    std::apply([&](const auto&... x) { (for_totals(x, f), ...); }, e.a);
}

template <class F, Operand... O> struct RowKernels {
  template <class V> static auto results(const RowSource& s, int64_t first, Block<V>& b) {
    return [&]<size_t... K>(std::index_sequence<K...>) {
      return as_tuple(F{}(operand<V, O>(s, static_cast<int>(K), first, b)...));
    }
    (std::make_index_sequence<sizeof...(O)>{});
  }
  template <class V>
  using Results =
      decltype(results<V>(std::declval<const RowSource&>(), 0, std::declval<Block<V>&>()));
  static constexpr size_t kResults = std::tuple_size_v<Results<vx::f32>>;
  static constexpr auto kAll = std::make_index_sequence<kResults>{};
  static constexpr auto kKinds = []<class... R>(std::type_identity<std::tuple<R...>>) {
    return std::array{R::kind...};
  }(std::type_identity<Results<vx::f32>>{});
  static constexpr int kTotals = lanes::kTotals<Results<vx::f32>>;

  // The first Each result: until its rows are written they may hold intermediate elements.
  template <class V> static Lane<V>* spare(void* const* out, int64_t at) {
    for (size_t k = 0; k < kResults; ++k) {
      if (kKinds[k] == Operand::Each && out[k]) return static_cast<Lane<V>*>(out[k]) + at;
    }
    return nullptr;
  }

  template <class V>
  [[gnu::flatten]] static void block(const RowSource& s, int64_t first, int64_t rows,
                                     void* const* out) {
    Block<V> b(rows, s.n, spare<V>(out, first * s.n));
    const auto r = results<V>(s, first, b);
    int total = 0;
    [&]<size_t... K>(std::index_sequence<K...>) {
      (across<K>(std::get<K>(r), s, first, rows, out, total), ...);
      const bool kept = (std::get<K>(r).kept() && ...);
      if constexpr ((std::tuple_element_t<K, Results<V>>::chain || ...)) {
        if (!kept) return store<V, false>(r, s.n, first, rows, out, kAll);
      }
      store<V, true>(r, s.n, first, rows, out, kAll);
    }
    (kAll);
  }

  static constexpr bool kTogether =
      ((O != Operand::Id) && ...) && std::ranges::all_of(kKinds, [](Operand kind) {
        return kind == Operand::Each || kind == Operand::PerRow;
      });
  template <class V, int n>
  [[gnu::flatten]] static void together_of(const RowSource& s, int64_t first, int64_t rows,
                                           void* const* out) {
    const int64_t end = (first + rows) * n;
    for (int64_t at = first * n; at < end; at += vx::lanes) {
      const int some = end - at < vx::lanes ? static_cast<int>(end - at) : vx::lanes;
      [&]<size_t... K, size_t... I>(std::index_sequence<K...>, std::index_sequence<I...>)
          __attribute__((always_inline)) {
        const auto r =
            as_tuple(F{}(together_operand<V, n, O>(s, static_cast<int>(I), at, some)...));
        ((out[K] ? put_together<V, n, kKinds[K]>(std::get<K>(r), out[K], at, some) : void()), ...);
      }
      (kAll, std::make_index_sequence<sizeof...(O)>{});
    }
  }
  template <class V>
  static void together(const RowSource& s, int64_t first, int64_t rows, void* const* out) {
    vx::with_length(s.n, [&](auto n) { together_of<V, decltype(n)::value>(s, first, rows, out); });
  }

  template <class V> static void finish(const RowSource& s, void* const* out) {
    Block<V> none(0, s.n, nullptr);
    std::fill_n(none.row_scalars, none.kMaxRowScalars, V{});  // No rows: quiets a warning.
    const auto r = results<V>(s, 0, none);
    int total = 0;
    [&]<size_t... K>(std::index_sequence<K...>) {
      (finish_one<V, K>(std::get<K>(r), s, out, total), ...);
    }
    (kAll);
  }

 private:
  // Per-row scalars, and the addends of totals.
  template <size_t K, class R>
  static void across(const R& r, const RowSource& s, int64_t first, int64_t rows, void* const* out,
                     int& total) {
    if constexpr (kKinds[K] == Operand::PerRow) {
      if (out[K]) store_scalars(r, out[K], first, rows);
    } else if constexpr (kKinds[K] == Operand::Number) {
      for_totals(r, [&](const auto& t) { store_scalars(t.x, s.totals[total++], first, rows); });
    }
  }
  template <class E> static void store_scalars(const E& e, void* to, int64_t first, int64_t rows) {
    using V = decltype(e.across().v);
    Lane<V>* const at = static_cast<Lane<V>*>(to) + first;
    if (rows == 1)  // A vector load of a scalar just stored would stall.
      *at = e.template bind<true>(0, 0).x.v[0];
    else
      put<V>(at, e.across().v, static_cast<int>(rows));
  }
  template <class V, size_t K, class R>
  static void finish_one(const R& r, const RowSource& s, void* const* out, int& total) {
    if constexpr (kKinds[K] == Operand::Number) {
      for_totals(r, [&](const auto& t) {
        const auto* from = static_cast<const Lane<V>*>(s.totals[total++]);
        t.sum = vx::splat(
            sum_row<V>(s.rows, [=](int64_t i, int lanes) { return take<V>(from + i, lanes); }));
      });
      if (out[K]) *static_cast<Lane<V>*>(out[K]) = r.across().v[0];
    }
  }

  struct Nothing {
    int at(int64_t, int) const { return 0; }
  };
  template <size_t K, bool Kept, class R> static auto bind(const R& r, int64_t row, int64_t n) {
    if constexpr (kKinds[K] == Operand::Each || kKinds[K] == Operand::Column)
      return r.template bind<Kept>(row, n);
    else
      return Nothing{};
  }
  template <class V, size_t K, class X>
  [[gnu::always_inline]] static void store_one(const X& x, Lane<V>* to, int64_t i, int lanes) {
    if constexpr (kKinds[K] == Operand::Each) {
      if (K == 0 || to) put<V>(to + i, x.v, lanes);
    } else if constexpr (kKinds[K] == Operand::Column) {
      if (to) put<V>(to + i, take<V>(to + i, lanes) + x.v, lanes);
    }
  }
  // Stores all elements of the rows. `r` is passed by value, so that no store can alias it, and
  // values are computed before stores: compilers do not move loads past stores.
  template <class V, bool Kept, class R, size_t... K>
  [[gnu::flatten]] static void store(const R r, int64_t n, int64_t first, int64_t rows,
                                     void* const* out, std::index_sequence<K...>) {
    if constexpr (((kKinds[K] == Operand::Each || kKinds[K] == Operand::Column) || ...)) {
      Lane<V>* to[] = {static_cast<Lane<V>*>(out[K])...};
      const auto move = [&](int64_t by) {
        ((to[K] += kKinds[K] == Operand::Each && to[K] ? by : 0), ...);
      };
      move(first * n);
      for (int64_t row = 0; row < rows; ++row) {
        const auto x = std::tuple{bind<K, Kept>(std::get<K>(r), row, n)...};
        map_row(
            n, [=](int64_t i, int lanes) __attribute__((always_inline)) {
              const std::tuple values{std::get<K>(x).at(i, lanes)...};
              (store_one<V, K>(std::get<K>(values), to[K], i, lanes), ...);
            });
        move(n);
      }
    }
  }
};

}  // namespace lanes

/// Operand k of a call whose tensors are `in`, for the differentiable form.
RowTensor row_tensor(const RowShape& s, const OpCall& c, const Tensor* in, int k);
RowTensorIds row_tensor_ids(const RowShape& s, const OpCall& c, const Tensor* in, int k);

/// The gradients that several lambdas return, concatenated.
template <class... G> struct AllGradients {
  template <class... A> auto operator()(const A&... a) const {
    return std::tuple_cat(as_tuple(G{}(a...))...);
  }
};

/// A row op. Callable with its operands: an absent one is Tensor().
class RowOp : public OpDef {
 public:
  /// All operands are Each. One gradient lambda per operand, from the first on.
  template <class F, class... G>
  RowOp(const char* n, const char* d, F, G...) : OpDef(n, d, {.kind = OpKind::Composite}) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      define<F, (static_cast<void>(I), Operand::Each)...>();
      add_gradient<F, AllGradients<G...>, (static_cast<void>(I), Operand::Each)...>();
    }
    (decltype(operands_of_lambda<F, Integers<>, RowNumbers, 1>())::all);
  }
  /// `operands` holds their names. A gradient lambda may return the gradients of several operands.
  template <Operand... O, class F, class... G>
  RowOp(const char* n, const char* d, Operands<O...>, std::vector<const char*> operands, F, G...)
      : OpDef(n, d, {.kind = OpKind::Composite}) {
    define<F, O...>();
    info.names = std::move(operands);
    add_gradient<F, AllGradients<G...>, O...>();
  }
  RowInfo& info = *new RowInfo;  // Never freed: threads use rows while the process exits.

  /// Returns the first result; the row is the last dim. Operands are tensors, a Scalar is a
  /// number; no id is ignored. Throws brrr::Error for operands that do not fit.
  template <class... T> Tensor operator()(const T&... operands) const { return run({operands...}); }

 private:
  struct Given {
    const Tensor* tensor = nullptr;
    double number = 0;
    Given(const Tensor& t) : tensor(&t) {}  // NOLINT(google-explicit-constructor)
    Given(double x) : number(x) {}          // NOLINT(google-explicit-constructor)
  };
  Tensor run(std::initializer_list<Given> operands) const;
  RowOp(const std::string& own_name, const char* d)
      : OpDef(strdup(own_name.c_str()), d, {.kind = OpKind::Composite, .gradient_row = true}) {}
  template <class F, Operand... O> void define() {
    using Kernels = lanes::RowKernels<F, O...>;
    static_assert(sizeof...(O) <= kMaxRowOperands, "too many operands of a row op");
    static_assert(Kernels::kResults <= kMaxOutputs, "a row op gives at most four results");
    static_assert(Kernels::kTotals <= kMaxOutputs, "a row op takes at most four row::total()");
    n_out = Kernels::kResults;
    (add_operand(O), ...);
    info.results.assign(Kernels::kKinds.begin(), Kernels::kKinds.end());
    info.totals = Kernels::kTotals;
    info.loops[0].block = Kernels::template block<vx::f32>;
    info.loops[1].block = Kernels::template block<vx::f64>;
    // (Not for float64, which would double g++'s compile time: its rows run one by one.)
    if constexpr (Kernels::kTogether) info.loops[0].together = Kernels::template together<vx::f32>;
    if constexpr (std::ranges::count(Kernels::kKinds, Operand::Number) > 0) {
      info.loops[0].finish = Kernels::template finish<vx::f32>;
      info.loops[1].finish = Kernels::template finish<vx::f64>;
    }
    info.tensors = tensors<F, O...>;
    info.oracle = oracle<F, O...>;
    info.symbols = symbols<F, O...>;
    finish();
  }
  void add_operand(Operand kind);
  void finish();
  template <class F, class G, Operand... O> void add_gradient() {
    using Kernels = lanes::RowKernels<F, O...>;
    if constexpr (!std::is_same_v<G, AllGradients<>>) {
      // Never freed, like its row.
      auto* gradient = new RowOp(std::string(name) + "_backward", doc);
      [&]<size_t... K>(std::index_sequence<K...>) {
        constexpr Operand own = Kernels::kKinds[0];
        using Gradients = lanes::RowKernels<G, O..., Kernels::kKinds[K]..., own>;
        static_assert(Gradients::kResults <= ((O != Operand::Scalar) + ...),
                      "a row op's lambdas return no more gradients than it has operands");
        static_assert(Gradients::kResults <= kMaxOutputs,
                      "a row op's lambdas return at most four gradients");
        gradient->define<G, O..., Kernels::kKinds[K]..., own>();
      }
      (Kernels::kAll);
      attach(gradient);
    }
  }
  void attach(RowOp* gradient);

  /// The results of F over operands value(k), or id(k) for an Id.
  template <class F, Operand... O, class X, class Ids>
  static auto results(const X& value, const Ids& id) {
    const auto operand = [&]<Operand Kind>(int k) {
      if constexpr (Kind == Operand::Id)
        return id(k);
      else
        return value(k);
    };
    return [&]<size_t... K>(std::index_sequence<K...>) {
      return std::apply([](const auto&... r) { return std::vector{r...}; },
                        as_tuple(F{}(operand.template operator()<O>(static_cast<int>(K))...)));
    }
    (std::make_index_sequence<sizeof...(O)>{});
  }
  template <class F, Operand... O>
  static std::vector<RowTensor> tensors(const RowShape& s, const OpCall& c, const Tensor* in) {
    return results<F, O...>([&](int k) { return row_tensor(s, c, in, k); },
                            [&](int k) { return row_tensor_ids(s, c, in, k); });
  }
  template <class F, Operand... O>
  static std::vector<RowNumbers> oracle(const RowNumbers* in, const RowNumberIds* ids) {
    return results<F, O...>([&](int k) { return in[k]; }, [&](int k) { return ids[k]; });
  }
  template <class F, Operand... O> static std::vector<int> symbols(const int* operands) {
    const auto made = results<F, O...>([&](int k) { return RowSym{Sym(operands[k])}; },
                                       [&](int k) { return RowSymIds{operands[k]}; });
    std::vector<int> ids;
    for (const RowSym& r : made) ids.push_back(r.s.id);
    return ids;
  }
  int inputs_ = 0, words_ = 1;
};

}  // namespace brrr
