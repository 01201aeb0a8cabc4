#pragma once
// The pointwise row: from one generic lambda come the eager loop, the oracle, the source text and
// the differentiable form; from one lambda per input the same four of each gradient.
//
//   const PointwiseOp erf{"erf", "Gauss error function", {},
//                         [](auto x) { return m::erf(x); },
//                         [](auto x, auto, auto g) { return g * 1.128... * m::exp(-x * x); }};
//
// A gradient lambda takes the inputs, the output and the output's gradient. Operands may be
// scalars in any call, so attributes (bounds, slopes, betas) are simply operands that always are.

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "core/call.h"
#include "core/context.h"
#include "ops/kinds/pointwise_loop.h"

namespace brrr {

/// Below this many elements a call is run on the spot, without the general driver.
inline constexpr int64_t kSmall = 1 << 15;

/// `out` and `in` hold one address each: for an operand of Integers that of the number, for one
/// that is made that of a vx::Line. step is 0 for a splat of 16 equal elements, else 1.
using PointwiseLoop = void (*)(char* const* out, const char* const* in, const int64_t* step,
                               int64_t n);

/// What an integer among the operands means that the result's integer dtype does not hold.
enum class Beyond : uint8_t {
  Exact,     ///< Itself, in int64; the result keeps its own low bits.
  Saturate,  ///< The nearest number that the dtype holds.
  Refuse,    ///< An error.
};

struct PointwiseTraits {
  Beyond beyond = Beyond::Exact;
  const char* no_bool = nullptr;  ///< Bool tensors are refused, with this mend.
  uint32_t condition = 0;         ///< Operands that take no part in promotion.
  bool wide = false;              ///< Is computed in float64, or int64.
  bool moves = false;             ///< The result is the operand itself.
  double lo = -2.0, hi = 2.0;     ///< Where tests sample the operands.
  /// See OpSpec::check_values: of what the row takes to be m::checked().
  void (*check)(const OpCall&) = nullptr;
};

struct PointwiseInfo {
  int n_in = 0;  ///< Operands that a call gives.
  uint8_t n_out = 1;
  int n_made = 0;
  int place[kMaxMade] = {};  ///< What is made: see Integers.
  uint32_t integers = 0;     ///< Operands that are int64, with those that are made.
  PointwiseTraits traits;
  PointwiseLoop loops[kNumDTypes] = {};  ///< By dtype in memory; null if it is to be converted.
  PointwiseLoop loop(DType t) const { return loops[static_cast<int>(t)]; }
  void (*emit)(const Sym* in, int* out) = nullptr;
  void (*oracle)(const double* in, double* out) = nullptr;  ///< Null of a row with integers.
  bool mask_out[kMaxOutputs] = {};                          ///< Output k is a comparison's result.
  const OpDef* grads[kMaxOperands] = {};  ///< The row that computes input i's gradient, if any.
  uint64_t grad_uses[kMaxOperands] = {};  ///< Its operands that matter: inputs, output, g.
  /// Of a gradient g * f, f of the other operands alone: the row of g and f.
  const OpDef* times = nullptr;
};

// The parts that do not depend on the lambda: pointwise.cpp, pointwise_rules.cpp.
void pointwise_infer(OpCall& c);
void pointwise_run(OpCall& c);
void pointwise_vjp(VjpCall& v);
/// Of a gradient that is linear in g, its last given operand, and uses no other tensor.
void linear_vjp(VjpCall& v);
/// The results' dtype, but for masks: the operands' common one, float32 for integers that the row
/// is not instantiated for.
DType pointwise_dtype(const OpCall& c);
/// The dtype of the arithmetic: compute_type of that, and int64 where an operand may hold what
/// int32 does not. Looks at dtypes, dims and numbers only.
DType pointwise_compute_dtype(const OpCall& c);
/// Makes of numbers that an integer dtype does not hold what the row wants (Beyond). To be called
/// before dispatch, so that a recorded call has the words that are computed with.
void settle_numbers(OpCall& c);

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
  // Integers and narrower floats are converted first, as kernels do, but for what the formula takes
  // as it is.
  const DType compute = pointwise_compute_dtype(c), common = pointwise_dtype(c);
  const uint32_t exact = O::integers | c.op->pointwise->traits.condition;
  const m::NumbersAs numbers(compute);
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

/// A pointwise row, which makes float32 of integers. Gradients, if any, are given for the first
/// inputs in order; an input without one gets none (integers, attributes).
class PointwiseOp : public OpDef {
 public:
  template <class F, class... G>
  PointwiseOp(const char* n, const char* d, const PointwiseTraits& traits, F f, G... g)
      : PointwiseOp(std::false_type{}, n, d, traits, f, g...) {}

  PointwiseInfo info;
  PointwiseLoop direct[kNumDTypes] = {};  ///< Of operands that have all this dtype.

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
    auto* row =
        new PointwiseOp("", doc, pointwise_info<false, G, O>(traits));  // For ever, as its row.
    if constexpr (O::Kinds::any)
      row->vjp = linear_vjp;
    else
      row->decompose = pointwise_decompose<G, O>;
    attach_gradient(i, row);
  }
  void attach_gradient(int i, PointwiseOp* row);
};

/// A pointwise row that is also instantiated for int64 and int32.
class NumberOp : public PointwiseOp {
 public:
  template <class F, class... G>
  NumberOp(const char* n, const char* d, const PointwiseTraits& traits, F f, G... g)
      : PointwiseOp(std::true_type{}, n, d, traits, f, g...) {}
};

/// Collects the operands of a pointwise call.
class PointwiseCall {
 public:
  explicit PointwiseCall(const OpDef& op) : in_{}, call_(op, in_.data(), 0) {}
  PointwiseCall& add(const Tensor& t);
  PointwiseCall& add(Scalar s);
  PointwiseCall& add(ControlCell& cell);
  /// Seed and number of the next draw of the random stream. A call that throws gives it back.
  PointwiseCall& draw();
  /// What it makes, where tensors do not tell. Throws if that cannot be, before a draw is used up.
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
  std::optional<IntList> sizes_;  ///< Of a call without tensors.
  int drawn_ = -1;                ///< The word with the number of a draw.
};

/// dst = src, converted and broadcast; executed at once, never recorded. For kernels' own use.
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
