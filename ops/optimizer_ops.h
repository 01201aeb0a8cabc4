#pragma once
// Optimiser updates: one row rewrites a parameter and its state in one pass. All of them work in
// place and have no gradient. Hyperparameters that change during training are control cells, so
// that changing them does not invalidate a recorded step.
//
// `skip` is undefined or a 0-d bool on the device: if true, parameters, moments and powers keep
// their values, whatever g is. The host reads nothing.

#include "core/tensor.h"

namespace brrr {

struct ControlCell;

// --- stochastic gradient descent: optimizer.cpp --------------------------------------------------
/// p -= lr * (g + weight_decay * p)
void sgd_step_(const Tensor& p, const Tensor& g, const ControlCell& lr,
               const ControlCell& weight_decay, const Tensor& skip = {});
/// buffer = momentum * buffer + g + weight_decay * p; p -= lr * buffer (Sutskever et al., 2013, in
/// PyTorch's form). With a zero buffer the first step is plain SGD; buffer elements below 2^-100
/// are flushed to zero.
void sgd_momentum_step_(const Tensor& p, const Tensor& g, const Tensor& buffer,
                        const ControlCell& lr, double momentum, const ControlCell& weight_decay,
                        const Tensor& skip = {});
/// The same with Nesterov momentum: p -= lr * (g + weight_decay * p + momentum * buffer).
void sgd_nesterov_step_(const Tensor& p, const Tensor& g, const Tensor& buffer,
                        const ControlCell& lr, double momentum, const ControlCell& weight_decay,
                        const Tensor& skip = {});

// --- Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019): optimizer.cpp -----------
/// A parameter's state. Means below 2^-100 are flushed to zero, those of squares below both 2^-126
/// and 2^-20 eps^2. The powers and corrections are 0-d; the powers are float64 and start at 1.
struct AdamState {
  Tensor exp_avg, exp_avg_sq;       ///< Moving means of g and g^2.
  Tensor beta1_power, beta2_power;  ///< beta^t after t steps.
  Tensor step_factor, root_factor;  ///< 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t).
};
struct AdamConstants {
  double beta1, beta2, eps;
};
/// Advances the powers by one step and derives the correction factors from them, in double.
void adam_scalars_(const AdamState& s, const AdamConstants& c, const Tensor& skip = {});
/// One step of Adam: g += weight_decay * p, then
/// p -= lr / (1 - beta1^t) * exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps).
void adam_step_(const Tensor& p, const Tensor& g, const AdamState& s, const ControlCell& lr,
                const AdamConstants& c, const ControlCell& weight_decay, const Tensor& skip = {});
/// The same with decoupled decay: p *= 1 - lr * weight_decay first, and g is used as it is.
void adamw_step_(const Tensor& p, const Tensor& g, const AdamState& s, const ControlCell& lr,
                 const AdamConstants& c, const ControlCell& weight_decay, const Tensor& skip = {});

}  // namespace brrr
