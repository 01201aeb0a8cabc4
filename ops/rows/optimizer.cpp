// Rows: optimiser updates, in PyTorch's order of operations.
#include "ops/optimizer_ops.h"

#include "ops/kinds/pointwise.h"

namespace brrr {

namespace {

// Tests sample every operand from [lo, hi]: second moments are positive, powers are below 1.
constexpr PointwiseTraits kTraits{.lo = 0.1, .hi = 0.9};
constexpr PointwiseTraits kUnlessTraits{.condition = 1, .lo = 0.1, .hi = 0.9};

/// F predicated by `skip`: where it is true, result k is the unchanged operand Kept[k].
template <class F, size_t... Kept> struct Unless {
  template <class T, class... X>
  requires(sizeof...(X) == OperandsOf<F, Integers<>>::count) [[gnu::always_inline]] auto operator()(
      T skip, X... x) const {
    const T old[] = {x...};
    auto now = as_tuple(F{}(x...));
    constexpr size_t kept[] = {Kept...};
    [&]<size_t... K>(std::index_sequence<K...>) __attribute__((always_inline)) {
      ((std::get<K>(now) = m::where(skip != 0.0, old[kept[K]], std::get<K>(now))), ...);
    }
    (std::make_index_sequence<sizeof...(Kept)>{});
    return now;
  }
};

/// An update and its predicated variant "<name>_unless", a separate row so that updates that are
/// never skipped pay nothing for it.
template <size_t... Kept> class Update {
 public:
  template <class F>
  Update(const char* name, const char* twin, const char* doc, F f)
      : always_(name, doc, kTraits, f), unless_(twin, doc, kUnlessTraits, Unless<F, Kept...>{}) {
    unless_.gradient_row = true;
  }
  const PointwiseOp& row(const Tensor& skip) const { return skip.defined() ? unless_ : always_; }

 private:
  PointwiseOp always_, unless_;
};

// The gradient with weight decay added; without decay it is g, even where p is infinite.
constexpr auto kDecayed = [](auto p, auto g, auto wd) {
  return m::where(wd == 0.0, g, g + wd * p);
};

// Once gradients stop, a moment would stay denormal for ever, which costs some processors a hundred
// cycles per operation: AdamW's step takes 7 times as long from the 820th on. So it is flushed to
// zero; a first moment early enough that its products with a learning rate are not denormal either.
constexpr auto kFlushed = [](auto moment) {
  return m::where(m::abs(moment) < 0x1p-100, 0.0, moment);
};
// A second moment is kept while its root is not negligible beside eps: the step is divided by it.
constexpr auto kFlushedSquare = [](auto moment, auto eps) {
  return m::where(moment < m::min(eps * eps * 0x1p-20, 0x1p-126), 0.0, moment);
};

const Update<0> sgd_update{
    "sgd_step", "sgd_step_unless", "p - lr * (g + weight_decay * p)",
    [](auto p, auto g, auto lr, auto wd) { return p - lr * kDecayed(p, g, wd); }};

template <bool nesterov> struct Momentum {
  template <class T> auto operator()(T p, T g, T buffer, T lr, T momentum, T wd) const {
    auto d = kDecayed(p, g, wd);
    auto b = kFlushed(momentum * buffer + d);
    if constexpr (nesterov) d = d + momentum * b;
    return std::tuple{p - lr * (nesterov ? d : b), b};
  }
};
const Update<0, 2> sgd_momentum_update{"sgd_momentum_step", "sgd_momentum_step_unless",
                                       "gradient descent with momentum: p and its buffer",
                                       Momentum<false>{}};
const Update<0, 2> sgd_nesterov_update{
    "sgd_nesterov_step", "sgd_nesterov_step_unless",
    "gradient descent with Nesterov's momentum: p and its buffer", Momentum<true>{}};

// Powers by products, not by pow: the same bits on every device, and cheap. A skipped step computes
// its corrections all the same; nothing reads them.
const Update<0, 1> adam_scalars_update{
    "adam_scalars", "adam_scalars_unless", "beta powers of the next step and the bias corrections",
    [](auto power1, auto power2, auto beta1, auto beta2) {
      auto p1 = power1 * beta1;
      auto p2 = power2 * beta2;
      return std::tuple{p1, p2, 1.0 / (1.0 - p1), 1.0 / m::sqrt(1.0 - p2)};
    }};

// w is 1 - beta, an operand computed in double: in float32 it would lose half its digits.
template <bool decoupled> struct Adam {
  template <class T>
  auto operator()(T p, T g, T avg, T avg_sq, T step_factor, T root_factor, T lr, T w1, T beta2,
                  T w2, T eps, T wd) const {
    if constexpr (decoupled)
      p = p * (1.0 - lr * wd);
    else
      g = kDecayed(p, g, wd);
    // Interpolates from the nearer end: a beta of 0 gives g exactly, however small beside avg.
    auto near_avg = w1 < 0.5;
    auto a = kFlushed(m::where(near_avg, avg, g) + m::where(near_avg, w1, w1 - 1.0) * (g - avg));
    auto s = kFlushedSquare(avg_sq * beta2 + w2 * g * g, eps);
    auto denominator = m::sqrt(s) * root_factor + eps;
    return std::tuple{p - lr * step_factor * a / denominator, a, s};
  }
};
const Update<0, 2, 3> adam_step_update{"adam_step", "adam_step_unless",
                                       "Adam: p, exp_avg and exp_avg_sq", Adam<false>{}};
const Update<0, 2, 3> adamw_step_update{"adamw_step", "adamw_step_unless",
                                        "AdamW: p, exp_avg and exp_avg_sq", Adam<true>{}};

// PointwiseCall takes non-const cells because a recording keeps them; nothing here writes one.
ControlCell& cell(const ControlCell& c) { return const_cast<ControlCell&>(c); }

/// Calls the variant that `skip` selects, writing `results` in place.
template <class Rows, class... Operands>
void step(const Rows& rows, const Tensor& skip, std::initializer_list<Tensor> results,
          Operands&&... operands) {
  PointwiseCall call(rows.row(skip));
  if (skip.defined()) call.add(skip);
  (call.add(operands), ...);
  call.run_into(results);
}

void adam(const Update<0, 2, 3>& rows, const Tensor& p, const Tensor& g, const AdamState& s,
          const ControlCell& lr, const AdamConstants& c, const ControlCell& wd,
          const Tensor& skip) {
  step(rows, skip, {p, s.exp_avg, s.exp_avg_sq}, p, g, s.exp_avg, s.exp_avg_sq, s.step_factor,
       s.root_factor, cell(lr), Scalar(1.0 - c.beta1), Scalar(c.beta2), Scalar(1.0 - c.beta2),
       Scalar(c.eps), cell(wd));
}

}  // namespace

void sgd_step_(const Tensor& p, const Tensor& g, const ControlCell& lr, const ControlCell& wd,
               const Tensor& skip) {
  step(sgd_update, skip, {p}, p, g, cell(lr), cell(wd));
}

void sgd_momentum_step_(const Tensor& p, const Tensor& g, const Tensor& buffer,
                        const ControlCell& lr, double momentum, const ControlCell& wd,
                        const Tensor& skip) {
  step(sgd_momentum_update, skip, {p, buffer}, p, g, buffer, cell(lr), Scalar(momentum), cell(wd));
}

void sgd_nesterov_step_(const Tensor& p, const Tensor& g, const Tensor& buffer,
                        const ControlCell& lr, double momentum, const ControlCell& wd,
                        const Tensor& skip) {
  step(sgd_nesterov_update, skip, {p, buffer}, p, g, buffer, cell(lr), Scalar(momentum), cell(wd));
}

void adam_scalars_(const AdamState& s, const AdamConstants& c, const Tensor& skip) {
  step(adam_scalars_update, skip, {s.beta1_power, s.beta2_power, s.step_factor, s.root_factor},
       s.beta1_power, s.beta2_power, Scalar(c.beta1), Scalar(c.beta2));
}

void adam_step_(const Tensor& p, const Tensor& g, const AdamState& s, const ControlCell& lr,
                const AdamConstants& c, const ControlCell& wd, const Tensor& skip) {
  adam(adam_step_update, p, g, s, lr, c, wd, skip);
}

void adamw_step_(const Tensor& p, const Tensor& g, const AdamState& s, const ControlCell& lr,
                 const AdamConstants& c, const ControlCell& wd, const Tensor& skip) {
  adam(adamw_step_update, p, g, s, lr, c, wd, skip);
}

}  // namespace brrr
