#pragma once
// The pointwise row. One generic lambda yields the eager loop, the float64 oracle, the source text
// and the differentiable form; one lambda per input yields the same four for its gradient.
//
//   const PointwiseOp erf{"erf", "Gauss error function", {},
//                         [](auto x) { return m::erf(x); },
//                         [](auto x, auto, auto g) { return g * 1.128... * m::exp(-x * x); }};
//
// A gradient lambda takes the inputs, the output and the output's gradient. Any operand of a call
// may be a scalar, so attributes (bounds, slopes, betas) are simply operands that always are.

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "core/call.h"
#include "core/context.h"
#include "ops/kinds/pointwise_loop.h"

namespace brrr {

/// Calls with at most this many elements run directly, without the general driver.
inline constexpr int64_t kSmall = 1 << 15;

/// `out` and `in` hold one address per operand: of its elements, of the int64 of an Integers
/// operand, of the vx::Line of a made one. step is 0 for a splat of 16 equal elements, else 1.
using PointwiseLoop = void (*)(char* const* out, const char* const* in, const int64_t* step,
                               int64_t n);

/// How an integer scalar operand that the result's integer dtype cannot hold is treated.
enum class Beyond : uint8_t {
  Exact,     ///< Used as it is, in int64; the result keeps its low bits.
  Saturate,  ///< Replaced by the nearest value that the dtype holds.
  Refuse,    ///< An error.
};

struct PointwiseTraits {
  Beyond beyond = Beyond::Exact;
  const char* no_bool = nullptr;  ///< Bool tensors are refused; the error gives this advice.
  uint32_t condition = 0;         ///< Bit k: operand k takes no part in promotion.
  bool wide = false;              ///< Computes in float64 or int64.
  bool moves = false;             ///< The op only copies its operand.
  double lo = -2.0, hi = 2.0;     ///< Range of the tests' samples.
  /// See OpSpec::check_values: checks what the row assumes to be m::checked().
  void (*check)(const OpCall&) = nullptr;
};

struct PointwiseInfo {
  int n_in = 0;  ///< Operands that a call passes.
  uint8_t n_out = 1;
  int n_made = 0;
  int place[kMaxMade] = {};  ///< Positions that are made: see Integers.
  uint32_t integers = 0;     ///< Bit k: operand k is int64, made ones included.
  PointwiseTraits traits;
  PointwiseLoop loops[kNumDTypes] = {};  ///< By dtype in memory; null: operands are converted.
  PointwiseLoop loop(DType t) const { return loops[static_cast<int>(t)]; }
  void (*emit)(const Sym* in, int* out) = nullptr;
  void (*oracle)(const double* in, double* out) = nullptr;  ///< Null for rows with integers.
  bool mask_out[kMaxOutputs] = {};                          ///< Output k is a comparison's mask.
  const OpDef* grads[kMaxOperands] = {};  ///< The row that computes input i's gradient, or null.
  uint64_t grad_uses[kMaxOperands] = {};  ///< Operands that it reads: inputs, output, g.
  /// If this gradient is g * f with f independent of g: the row g * f.
  const OpDef* times = nullptr;
};

// Functions that do not depend on the lambda: pointwise.cpp, pointwise_rules.cpp.
void pointwise_infer(OpCall& c);
void pointwise_run(OpCall& c);
void pointwise_vjp(VjpCall& v);
/// Of gradient rows that are linear in g, their last given operand, and read no other tensor.
void linear_vjp(VjpCall& v);
/// The dtype of results other than masks: the operands' common dtype, or float32 for integers that
/// the row is not instantiated for.
DType pointwise_dtype(const OpCall& c);
/// The dtype of the arithmetic: compute_type of pointwise_dtype(), and int64 where an operand may
/// exceed int32. Depends on dtypes, dims and scalars only.
DType pointwise_compute_dtype(const OpCall& c);
/// Applies `Beyond` to scalars that an integer result dtype cannot hold. Call before dispatch, so
/// that a recorded call holds the words it computes with.
void fit_integer_scalars(OpCall& c);

template <class F, class O> void pointwise_emit(const Sym* in, int* out) {
  const auto operand = [&](auto k) { return typename O::template Type<Sym, k>(in[k].id); };
  auto y = row_outputs<F, O>(operand);
  std::apply([&](auto... r) { ((*out++ = r.id), ...); }, y);
}

template <class F, class O> void pointwise_oracle(const double* in, double* out) {
  auto y = row_outputs<F, O>([&](auto k) { return Num<double>(in[k]); });
  auto value = [](auto r) -> double {
    if constexpr (kIsMask<decltype(r)>)
      return r.m;
    else
      return r.v;
  };
  std::apply([&](auto... r) { ((*out++ = value(r)), ...); }, y);
}

template <class F, class O> void pointwise_decompose(OpCall& c, const Tensor* in) {
  // Convert integers and narrower floats first, as kernels do, except operands that the formula
  // takes unconverted.
  const DType compute = pointwise_compute_dtype(c), common = pointwise_dtype(c);
  const uint32_t exact = O::integers | c.op->pointwise->traits.condition;
  const m::LiteralDTypeScope numbers(compute);
  auto y = row_outputs<F, O>([&](auto k) {
    if (!in[k].defined() || !is_floating(compute) || exact >> k & 1) return in[k];
    const DType own = in[k].dtype();
    if (!is_floating(own)) return in[k].to(compute);
    return itemsize(own) < itemsize(common) ? in[k].to(common) : in[k];
  });
  int k = 0;
  std::apply([&](auto... r) { ((c.out[k++] = r), ...); }, y);
}

template <bool Numbers, class F, class O>
PointwiseInfo pointwise_info(const PointwiseTraits& traits) {
  PointwiseInfo info{.n_in = O::given,
                     .n_made = O::Kinds::made,
                     .integers = O::integers,
                     .traits = traits,
                     .loops = {pointwise_loop<F, vx::f32, O>, pointwise_loop<F, vx::f64, O>},
                     .emit = pointwise_emit<F, O>};
  if constexpr (O::integers == 0) info.oracle = pointwise_oracle<F, O>;
  if constexpr (Numbers) {
    const auto set = [&](DType t, PointwiseLoop loop) { info.loops[static_cast<int>(t)] = loop; };
    set(kInt64, pointwise_loop<F, vx::i64, O>);
    set(kInt32, pointwise_loop<F, vx::i32, O>);
    set(kUInt8, pointwise_loop<F, vx::i32, O, uint8_t>);
    set(kBool, pointwise_loop<F, vx::i32, O, bool>);
    if (traits.moves) set(kBFloat16, move_16bits), set(kFloat16, move_16bits);
  }
  std::copy_n(O::Kinds::place, info.n_made, info.place);
  [&]<class... R>(std::type_identity<std::tuple<R...>>) {
    info.n_out = sizeof...(R);
    int k = 0;
    ((info.mask_out[k++] = kIsMask<R>), ...);
  }(std::type_identity<OutputsType<F, O, Num<vx::f32>>>{});
  return info;
}

/// A pointwise row; integers are computed in float32. Gradients, if any, belong to the first inputs
/// in order; inputs without one (integers, attributes) get no gradient.
class PointwiseOp : public OpDef {
 public:
  template <class F, class... G>
  PointwiseOp(const char* n, const char* d, const PointwiseTraits& traits, F f, G... g)
      : PointwiseOp(std::false_type{}, n, d, traits, f, g...) {}

  PointwiseInfo info;
  PointwiseLoop direct[kNumDTypes] = {};  ///< For operands that all have this dtype.

 protected:
  template <bool Numbers, class F, class... G>
  PointwiseOp(std::bool_constant<Numbers> numbers, const char* n, const char* d,
              const PointwiseTraits& traits, F f, G... g)
      : PointwiseOp(numbers, n, d, traits, Integers<>{}, f, g...) {}
  template <bool Numbers, uint32_t Given, int... Made, class F, class... G>
  PointwiseOp(std::bool_constant<Numbers>, const char* n, const char* d,
              const PointwiseTraits& traits, Integers<Given, Made...>, F, G...)
      : PointwiseOp(n, d,
                    pointwise_info<Numbers, F, OperandsOf<F, Integers<Given, Made...>>>(traits)) {
    using O = OperandsOf<F, Integers<Given, Made...>>;
    int i = 0;
    (add_gradient<G, typename O::Gradient>(i++), ...);
    if constexpr (sizeof...(G) > 0) {
      vjp = pointwise_vjp;
      if constexpr (!O::Kinds::any) decompose = pointwise_decompose<F, O>;
    }
  }

 private:
  PointwiseOp(const char* n, const char* d, const PointwiseInfo& i);
  template <class G, class O> void add_gradient(int i) {
    const PointwiseTraits traits{.condition = info.traits.condition,
                                 .wide = info.traits.wide,
                                 .lo = info.traits.lo,
                                 .hi = info.traits.hi};
    auto* row = new PointwiseOp("", doc, pointwise_info<false, G, O>(traits));  // Never freed.
    if constexpr (O::Kinds::any)
      row->vjp = linear_vjp;
    else
      row->decompose = pointwise_decompose<G, O>;
    attach_gradient(i, row);
  }
  void attach_gradient(int i, PointwiseOp* row);
};

/// A pointwise row that is also instantiated for int64, int32, uint8 and bool.
class NumberOp : public PointwiseOp {
 public:
  template <class F, class... G>
  NumberOp(const char* n, const char* d, const PointwiseTraits& traits, F f, G... g)
      : PointwiseOp(std::true_type{}, n, d, traits, f, g...) {}
};

/// Builds a pointwise call operand by operand.
class PointwiseCall {
 public:
  explicit PointwiseCall(const OpDef& op) : in_{}, call_(op, in_.data(), 0) {}
  PointwiseCall& add(const Tensor& t);
  PointwiseCall& add(Scalar s);
  PointwiseCall& add(ControlCell& cell);
  /// Adds the seed and the number of the next draw of the random stream. A throw returns it.
  PointwiseCall& draw();
  /// The result of a call without tensors. Throws if it is impossible, before a draw is used up.
  PointwiseCall& make(const IntList& sizes, DType dtype, Device device);
  PointwiseCall& dtype(DType t) {
    call_.attrs.set_dtype(t);
    return *this;
  }
  Tensor run();  ///< The first output.
  std::vector<Tensor> run_all();
  void run_into(std::initializer_list<Tensor> outs);  ///< Writes the given tensors in place.

 private:
  int next();
  void go();
  std::array<TensorImpl*, kMaxOperands> in_;
  OpCall call_;
  std::optional<IntList> sizes_;  ///< For a call without tensors.
  int drawn_ = -1;                ///< The word that holds the number of a draw.
};

/// dst = src, converted and broadcast; runs at once, never recorded. For use within kernels.
void copy_now(TensorImpl& dst, const TensorImpl& src);
/// dst = 0, likewise.
void zero_now(const TensorImpl& dst);
/// A dense copy in a dtype, likewise.
Tensor copied(const TensorImpl& t, DType dtype);

/// op(a), op(a, b), op(a, scalar): the fast path of eager mode, else PointwiseCall.
Tensor call(const PointwiseOp& op, const Tensor& a);
Tensor call(const PointwiseOp& op, const Tensor& a, const Tensor& b);
Tensor call(const PointwiseOp& op, const Tensor& a, Scalar b);
Tensor call(const PointwiseOp& op, Scalar a, const Tensor& b);
/// a = op(a, b), in place.
void call_into(const PointwiseOp& op, const Tensor& a, const Tensor& b);
void call_into(const PointwiseOp& op, const Tensor& a, Scalar b);

}  // namespace brrr
