#pragma once
// Dynamic loss scaling for float16 gradients, which would otherwise underflow (Micikevicius et al.,
// 2018).

#include "core/op.h"
#include "models/optim.h"

namespace brrr::optim {

struct GradScalerOptions {
  double scale = 65536;  ///< The initial scale. Powers of two scale exactly.
  double growth = 2;     ///< Factor after `interval` good steps in a row.
  double backoff = 0.5;  ///< Factor after a step with infinite or NaN gradients.
  int64_t interval = 2000;
  Device device = default_device();  ///< The model's device.
};

/// Adapts the loss scale during training. Its state and the decision to skip a step are on the
/// device: nothing is read on the host, and one recording serves good and bad steps.
///
///     scaler.scale(loss).backward();
///     Tensor skip = scaler.unscale_(params);      // divides the gradients by the scale
///     optim::clip_grad_norm_(params, 1.0);        // optional
///     opt.step(skip);                             // changes nothing if skip is true
///     scaler.update(skip);
///
/// With several micro-batches run the last four lines once, after the last backward. A debug run
/// with StepOptions::check_numerics also reports the overflows that are skipped here.
class GradScaler : NotCopied {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss * scale, differentiable; at least float32, so that a 16-bit loss does not overflow.
  Tensor scale(const Tensor& loss) const;
  /// Divides the parameters' gradients by the scale, in place, a shared one once. Returns a 0-d
  /// bool: whether any of them is infinite or NaN. Throws if a DataParallel has not exchanged them
  /// yet, and if one of them was already divided since the last update().
  Tensor unscale_(const std::vector<Tensor>& parameters) const;
  /// Shrinks the scale if the step was skipped; otherwise counts it, and grows the scale when due.
  /// The scale stays within [2^-126, 2^126], so that its inverse is finite.
  void update(const Tensor& skipped) const;

  /// The scale, 0-d float32; shares memory.
  Tensor value() const { return scale_; }

  /// "scale" and "good_steps"; the handles share memory.
  StateDict state_dict() const;
  void check_state_dict(const StateDict& dict) const;
  void load_state_dict(const StateDict& dict) const;

 private:
  std::vector<NamedTensor> state() const;
  GradScalerOptions options_;
  Tensor scale_, good_steps_;
  // Parameters divided since the last update(): the first count_; the rest are of steps that threw.
  mutable std::vector<const void*> divided_;
  const Ref<ControlCell> count_ = control_cell(0, ControlCell::Mark);
};

}  // namespace brrr::optim
