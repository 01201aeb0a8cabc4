// Rows: the updates of optimisers. The order of operations is PyTorch's.
#include "ops/optimizer_ops.h"

#include "ops/pointwise.h"

namespace brrr {

namespace {

// Tests sample every operand between these, so that second moments are positive and powers below 1.
constexpr PointwiseTraits kTraits{.lo = 0.1, .hi = 0.9};

const PointwiseOp sgd_row{"sgd_step", "p - lr * (g + weight_decay * p)", kTraits,
                          [](auto p, auto g, auto lr, auto wd) { return p - lr * (g + wd * p); }};

const PointwiseOp sgd_momentum_row{
    "sgd_momentum_step", "gradient descent with momentum: p and its buffer", kTraits,
    [](auto p, auto g, auto buffer, auto lr, auto momentum, auto wd) {
      auto b = momentum * buffer + (g + wd * p);
      return std::tuple{p - lr * b, b};
    }};

const PointwiseOp sgd_nesterov_row{
    "sgd_nesterov_step", "gradient descent with Nesterov's momentum: p and its buffer", kTraits,
    [](auto p, auto g, auto buffer, auto lr, auto momentum, auto wd) {
      auto d = g + wd * p;
      auto b = momentum * buffer + d;
      return std::tuple{p - lr * (d + momentum * b), b};
    }};

// Powers by products, not by pow: exact to the bit on every device, and cheap.
const PointwiseOp adam_scalars_row{
    "adam_scalars", "beta powers of the next step and the bias corrections", kTraits,
    [](auto power1, auto power2, auto beta1, auto beta2) {
      auto p1 = power1 * beta1;
      auto p2 = power2 * beta2;
      return std::tuple{p1, p2, 1.0 / (1.0 - p1), 1.0 / m::sqrt(1.0 - p2)};
    }};

// 1 - beta comes as an operand w: in float32 the difference would lose half its digits.
template <class T>
auto adam_update(T p, T g, T avg, T avg_sq, T step_factor, T root_factor, T lr, T w1, T beta2, T w2,
                 T eps) {
  auto a = avg + w1 * (g - avg);
  auto s = avg_sq * beta2 + w2 * g * g;
  auto denominator = m::sqrt(s) * root_factor + eps;
  return std::tuple{p - lr * step_factor * a / denominator, a, s};
}

const PointwiseOp adam_row{
    "adam_step", "Adam: p, exp_avg and exp_avg_sq", kTraits,
    [](auto p, auto g, auto avg, auto avg_sq, auto step_factor, auto root_factor, auto lr, auto w1,
       auto beta2, auto w2, auto eps, auto wd) {
      return adam_update(p, g + wd * p, avg, avg_sq, step_factor, root_factor, lr, w1, beta2, w2,
                         eps);
    }};

const PointwiseOp adamw_row{
    "adamw_step", "AdamW: p, exp_avg and exp_avg_sq", kTraits,
    [](auto p, auto g, auto avg, auto avg_sq, auto step_factor, auto root_factor, auto lr, auto w1,
       auto beta2, auto w2, auto eps, auto wd) {
      return adam_update(p * (1.0 - lr * wd), g, avg, avg_sq, step_factor, root_factor, lr, w1,
                         beta2, w2, eps);
    }};

// Calls take cells as non-const because a recording keeps them; nothing here writes one.
ControlCell& cell(const ControlCell& c) {
  return const_cast<ControlCell&>(c);
}

void momentum_step(const PointwiseOp& row, const Tensor& p, const Tensor& g, const Tensor& buffer,
                   const ControlCell& lr, double momentum, const ControlCell& wd) {
  PointwiseCall(row)
      .add(p)
      .add(g)
      .add(buffer)
      .add(cell(lr))
      .add(Scalar(momentum))
      .add(cell(wd))
      .run_into({p, buffer});
}

void adam(const PointwiseOp& row, const Tensor& p, const Tensor& g, const AdamState& s,
          const ControlCell& lr, const AdamConstants& c, const ControlCell& wd) {
  PointwiseCall(row)
      .add(p)
      .add(g)
      .add(s.exp_avg)
      .add(s.exp_avg_sq)
      .add(s.step_factor)
      .add(s.root_factor)
      .add(cell(lr))
      .add(Scalar(1.0 - c.beta1))
      .add(Scalar(c.beta2))
      .add(Scalar(1.0 - c.beta2))
      .add(Scalar(c.eps))
      .add(cell(wd))
      .run_into({p, s.exp_avg, s.exp_avg_sq});
}

}  // namespace

void sgd_step_(const Tensor& p, const Tensor& g, const ControlCell& lr, const ControlCell& wd) {
  PointwiseCall(sgd_row).add(p).add(g).add(cell(lr)).add(cell(wd)).run_into({p});
}

void sgd_momentum_step_(const Tensor& p, const Tensor& g, const Tensor& buffer,
                        const ControlCell& lr, double momentum, const ControlCell& wd) {
  momentum_step(sgd_momentum_row, p, g, buffer, lr, momentum, wd);
}

void sgd_nesterov_step_(const Tensor& p, const Tensor& g, const Tensor& buffer,
                        const ControlCell& lr, double momentum, const ControlCell& wd) {
  momentum_step(sgd_nesterov_row, p, g, buffer, lr, momentum, wd);
}

void adam_scalars_(const AdamState& s, const AdamConstants& c) {
  PointwiseCall(adam_scalars_row)
      .add(s.beta1_power)
      .add(s.beta2_power)
      .add(Scalar(c.beta1))
      .add(Scalar(c.beta2))
      .run_into({s.beta1_power, s.beta2_power, s.step_factor, s.root_factor});
}

void adam_step_(const Tensor& p, const Tensor& g, const AdamState& s, const ControlCell& lr,
                const AdamConstants& c, const ControlCell& wd) {
  adam(adam_row, p, g, s, lr, c, wd);
}

void adamw_step_(const Tensor& p, const Tensor& g, const AdamState& s, const ControlCell& lr,
                 const AdamConstants& c, const ControlCell& wd) {
  adam(adamw_row, p, g, s, lr, c, wd);
}

}  // namespace brrr
