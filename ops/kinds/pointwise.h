#pragma once
// The pointwise row: from one generic lambda come the eager loop, the oracle, the source text and
// the differentiable form; from one lambda per input the same four of each gradient.
//
//   const PointwiseOp erf{"erf", "Gauss error function", {.result = Result::Float},
//                         [](auto x) { return m::erf(x); },
//                         [](auto x, auto, auto g) { return g * 1.128... * m::exp(-x * x); }};
//
// A gradient lambda takes the inputs, the output and the output's gradient. Operands may be scalars
// in any call, so attributes (bounds, slopes, betas) are simply operands that always are.

#include <array>
#include <tuple>

#include "core/call.h"
#include "core/context.h"
#include "ops/vocabulary/scalar_math.h"

namespace brrr {

inline constexpr int kMaxOperands = kMaxAttrs;
/// Below this many elements a call is run on the spot, without the general driver.
inline constexpr int64_t kSmall = 1 << 15;

/// `out` and `in` hold one address each; step is 0 for a splat of 16 equal elements, else 1.
using PointwiseLoop = void (*)(char* const* out, const char* const* in, const int64_t* step,
                               int64_t n);

/// The compute types a row is instantiated for.
enum class Types : uint8_t { Floating, Number };
/// Its result dtype: promoted; promoted with integers turned to float32; bool.
enum class Result : uint8_t { Promoted, Float, Bool };

/// What an integer among the operands means that the result's integer dtype does not hold.
enum class Beyond : uint8_t {
  Exact,     ///< Itself, in int64; the result keeps its own low bits.
  Saturate,  ///< The nearest number that the dtype holds.
  Refuse,    ///< An error.
};

struct PointwiseTraits {
  Types types = Types::Floating;
  Result result = Result::Promoted;
  Beyond beyond = Beyond::Exact;
  const char* no_bool = nullptr;  ///< Bool tensors are refused, with this mend.
  uint32_t condition = 0;         ///< Operands that take no part in promotion.
  double lo = -2.0, hi = 2.0;     ///< Where tests sample the operands.
};

struct PointwiseInfo {
  int n_in = 0;
  uint8_t n_out = 1;
  PointwiseTraits traits;
  PointwiseLoop loops[4] = {};  ///< By compute_index; null if not instantiated.
  void (*emit)(const Sym* in, int* out) = nullptr;
  void (*oracle)(const double* in, double* out) = nullptr;
  bool mask_out[kMaxOutputs] = {};        ///< Output k is a comparison's result.
  const OpDef* grads[kMaxOperands] = {};  ///< The row that computes input i's gradient.
  uint64_t grad_uses[kMaxOperands] = {};  ///< Its operands that matter: inputs, output, g.
  bool has_grad[kMaxOperands] = {};
  bool grad_is_g[kMaxOperands] = {};  ///< The gradient is the output's, unchanged.
};

// The parts that do not depend on the lambda: pointwise.cpp, pointwise_rules.cpp.
void pointwise_infer(OpCall& c);
void pointwise_run(OpCall& c);
void pointwise_vjp(VjpCall& v);
/// The dtype that a call's operands promote to, before Result is applied.
DType pointwise_common_dtype(const OpCall& c);
/// The dtype of the arithmetic: compute_type of what Result makes of the common dtype, and int64
/// where an operand may hold what int32 does not. Looks at dtypes, dims and numbers only.
DType pointwise_compute_dtype(const OpCall& c);
/// Makes of numbers that an integer dtype does not hold what the row wants (Beyond). To be called
/// before dispatch, so that a recorded call has the words that are computed with.
void settle_numbers(OpCall& c);

template <class R> struct OutputsOf { static constexpr int value = 1; };
template <class... R> struct OutputsOf<std::tuple<R...>> {
  static constexpr int value = sizeof...(R);
};

template <class X> inline constexpr bool kIsMask = false;
template <class V> inline constexpr bool kIsMask<Mask<V>> = true;
template <> inline constexpr bool kIsMask<SymMask> = true;

template <size_t, class T> using Repeat = T;
template <class F, class T, size_t... I> constexpr bool takes(std::index_sequence<I...>) {
  return std::is_invocable_v<F, Repeat<I, T>...>;
}
/// How many operands the lambda F has.
template <class F, int N = 1> constexpr int arity() {
  if constexpr (takes<F, Num<vx::f32>>(std::make_index_sequence<N>{}))
    return N;
  else
    return arity<F, N + 1>();
}
template <class F, class T, size_t... I>
[[gnu::always_inline]] inline auto apply_row(const T* in, std::index_sequence<I...>) {
  return F{}(in[I]...);
}
/// f(in[0], ..., in[N-1]) as a tuple.
template <class F, int N, class T> [[gnu::always_inline]] inline auto row_outputs(const T* in) {
  auto r = apply_row<F>(in, std::make_index_sequence<N>{});
  if constexpr (requires { std::tuple_size<decltype(r)>::value; })
    return r;
  else
    return std::tuple{r};
}

template <class V, bool Tail, class X>
[[gnu::always_inline]] inline void store_lane(char* out, int64_t i, X x, int n) {
  if constexpr (kIsMask<X>) {
    const auto bytes = vx::b16_to_bool(x.m);
    auto* p = reinterpret_cast<unsigned char*>(out) + i;
    if constexpr (Tail)
      vx::store_n(p, bytes, n);
    else
      vx::store(p, bytes);
  } else {
    auto* p = reinterpret_cast<Lane<V>*>(out) + i;
    if constexpr (Tail)
      vx::store_n(p, x.v, n);
    else
      vx::store(p, x.v);
  }
}

// One vector of every operand, `n` lanes of it in a tail, to element i of the outputs.
template <class F, class V, int N, bool Tail, size_t... I>
[[gnu::always_inline]] inline void pointwise_vector(char* const* out, const char* const* in,
                                                    int64_t i, int n, std::index_sequence<I...>) {
  auto operand = [&](size_t k) __attribute__((always_inline))->Num<V> {
    const auto* p = reinterpret_cast<const Lane<V>*>(in[k]);
    if constexpr (Tail)
      return vx::load_n(p, n);
    else
      return vx::load(p);
  };
  const Num<V> x[N] = {operand(I)...};
  const auto y = row_outputs<F, N>(x);
  [&]<size_t... K>(std::index_sequence<K...>) __attribute__((always_inline)) {
    (store_lane<V, Tail>(out[K], i, std::get<K>(y), n), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<std::remove_const_t<decltype(y)>>>{});
}

template <class F, class V, int N>
void pointwise_loop(char* const* out, const char* const* in, const int64_t* step, int64_t n) {
  constexpr auto all = std::make_index_sequence<N>{};
  if (n < 16) return pointwise_vector<F, V, N, true>(out, in, 0, static_cast<int>(n), all);
  // Copies that no store can alias: the compiler keeps what it can in registers.
  const char* at[N];
  int64_t bytes[N];
  char* to[kMaxOutputs];
  for (int k = 0; k < N; ++k) {
    at[k] = in[k];
    bytes[k] = step[k] * static_cast<int64_t>(16 * sizeof(Lane<V>));
  }
  for (int k = 0; k < OutputsOf<decltype(row_outputs<F, N>(static_cast<Num<V>*>(nullptr)))>::value;
       ++k) {
    to[k] = out[k];
  }
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    pointwise_vector<F, V, N, false>(to, at, i, 16, all);
    for (int k = 0; k < N; ++k) at[k] += bytes[k];
  }
  if (i < n) pointwise_vector<F, V, N, true>(to, at, i, static_cast<int>(n - i), all);
}

template <class F, int N> void pointwise_emit(const Sym* in, int* out) {
  auto y = row_outputs<F, N>(in);
  std::apply([&](auto... r) { ((*out++ = r.id), ...); }, y);
}

template <class F, int N> void pointwise_oracle(const double* in, double* out) {
  Num<double> x[N];
  for (int i = 0; i < N; ++i) x[i] = in[i];
  auto y = row_outputs<F, N>(x);
  auto value = [](auto r) -> double {
    if constexpr (kIsMask<decltype(r)>)
      return r.m;
    else
      return r.v;
  };
  std::apply([&](auto... r) { ((*out++ = value(r)), ...); }, y);
}

template <class F, int N> void pointwise_decompose(OpCall& c, const Tensor* in) {
  auto y = row_outputs<F, N>(in);
  int k = 0;
  std::apply([&](auto... r) { ((c.out[k++] = r), ...); }, y);
}

template <class F, int N> PointwiseInfo pointwise_info(const PointwiseTraits& traits) {
  PointwiseInfo info{.n_in = N,
                     .traits = traits,
                     .loops = {pointwise_loop<F, vx::f32, N>, pointwise_loop<F, vx::f64, N>},
                     .emit = pointwise_emit<F, N>,
                     .oracle = pointwise_oracle<F, N>};
  using R = decltype(row_outputs<F, N>(static_cast<Num<vx::f32>*>(nullptr)));
  info.n_out = std::tuple_size_v<R>;
  [&]<size_t... K>(std::index_sequence<K...>) {
    ((info.mask_out[K] = kIsMask<std::tuple_element_t<K, R>>), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<R>>{});
  return info;
}

/// A pointwise row. Gradients, if any, are given for the first inputs in order; an input without
/// one gets none (integers, attributes).
class PointwiseOp : public OpDef {
 public:
  template <class F, class... G>
  PointwiseOp(const char* n, const char* d, const PointwiseTraits& traits, F, G...)
      : PointwiseOp(n, d, pointwise_info<F, arity<F>()>(traits)) {
    int i = 0;
    (add_gradient<G, arity<F>()>(i++), ...);
    if constexpr (sizeof...(G) > 0) {
      vjp = pointwise_vjp;
      decompose = pointwise_decompose<F, arity<F>()>;
    }
  }

  PointwiseInfo info;
  PointwiseLoop direct[kNumDTypes] = {};  ///< Storage is the compute type: no conversion.
  DType direct_out[kNumDTypes] = {};
  uint8_t direct_bytes[kNumDTypes] = {};  ///< Of an element of the output.

 protected:
  /// A row that states integer loops (see NumberOp) has them from here.
  template <class F, int N> void add_integer_loops() {
    info.loops[2] = pointwise_loop<F, vx::i64, N>;
    info.loops[3] = pointwise_loop<F, vx::i32, N>;
  }

 private:
  PointwiseOp(const char* n, const char* d, const PointwiseInfo& i);
  template <class G, int N> void add_gradient(int i) {
    const PointwiseTraits traits{
        .condition = info.traits.condition, .lo = info.traits.lo, .hi = info.traits.hi};
    auto* row =
        new PointwiseOp("", doc, pointwise_info<G, N + 2>(traits));  // For ever, as its row.
    row->decompose = pointwise_decompose<G, N + 2>;
    attach_gradient(i, row);
  }
  void attach_gradient(int i, PointwiseOp* row);
  std::string own_name_;
};

/// A pointwise row that is also instantiated for int64 and int32.
class NumberOp : public PointwiseOp {
 public:
  template <class F, class... G>
  NumberOp(const char* n, const char* d, const PointwiseTraits& traits, F, G...)
      : PointwiseOp(n, d, with_numbers(traits), F{}, G{}...) {
    add_integer_loops<F, arity<F>()>();
    fill_direct();
  }

 private:
  static PointwiseTraits with_numbers(PointwiseTraits t) {
    t.types = Types::Number;
    return t;
  }
  void fill_direct();
};

/// Collects the operands of a pointwise call.
class PointwiseCall {
 public:
  explicit PointwiseCall(const OpDef& op) : in_{}, call_(op, in_.data(), 0) {}
  PointwiseCall& add(const Tensor& t);
  PointwiseCall& add(Scalar s);
  PointwiseCall& add(ControlCell& cell);
  /// The operand `i` of a recorded call, which was a scalar there.
  PointwiseCall& add_scalar_of(const Attrs& a, int i);
  PointwiseCall& dtype(DType t) {
    call_.attrs.set_dtype(t);
    return *this;
  }
  Tensor run();  ///< The first output.
  std::vector<Tensor> run_all();
  void run_into(std::initializer_list<Tensor> outs);  ///< Writes the given tensors in place.

 private:
  std::array<TensorImpl*, kMaxOperands> in_;
  OpCall call_;
};

/// dst = src, converted and broadcast; executed at once, never recorded. For kernels' own use.
void copy_now(TensorImpl& dst, const TensorImpl& src);

/// op(a), op(a, b), op(a, scalar): the fast path of eager mode, else PointwiseCall.
Tensor call(const PointwiseOp& op, const Tensor& a);
Tensor call(const PointwiseOp& op, const Tensor& a, const Tensor& b);
Tensor call(const PointwiseOp& op, const Tensor& a, Scalar b);
Tensor call(const PointwiseOp& op, Scalar a, const Tensor& b);
/// a = op(a, b), in place.
void call_into(const PointwiseOp& op, const Tensor& a, const Tensor& b);
void call_into(const PointwiseOp& op, const Tensor& a, Scalar b);

}  // namespace brrr
