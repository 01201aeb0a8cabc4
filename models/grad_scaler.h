#pragma once
// Loss scaling for float16, whose gradients would underflow (Micikevicius et al., 2018).

#include "core/op.h"
#include "models/optim.h"

namespace brrr::optim {

struct GradScalerOptions {
  double scale = 65536;  ///< The first one. Powers of two scale exactly.
  double growth = 2;     ///< Factor after `interval` good steps in a row.
  double backoff = 0.5;  ///< Factor after a step with infinite or NaN gradients.
  int64_t interval = 2000;
  Device device = default_device();  ///< Where the model is.
};

/// A scale for the loss that adapts itself. All of it, with the decision to skip a step, is device
/// state: nothing is read on the host, and one recording serves good and bad steps.
///
///     scaler.scale(loss).backward();
///     Tensor skip = scaler.unscale_(params);      // gradients in their own size again
///     optim::clip_grad_norm_(params, 1.0);        // optional
///     opt.step(skip);                             // changes nothing where skip holds
///     scaler.update(skip);
///
/// With several micro-batches the last four lines come once, after the last backward. A debug run
/// with StepOptions::check_numerics reports the very overflow that is skipped here.
class GradScaler : NotCopied {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// loss * scale, differentiable; float32 at least, so that a 16-bit loss does not overflow.
  Tensor scale(const Tensor& loss) const;
  /// Divides the parameters' gradients by the scale, in place, a shared one once. Returns a 0-d
  /// bool: whether any of them is infinite or NaN. Throws where a DataParallel has yet to exchange
  /// them, and where there was no update() since it divided one of them.
  Tensor unscale_(const std::vector<Tensor>& parameters) const;
  /// Shrinks the scale if the step was skipped, else counts it and lets the scale grow when due.
  /// The scale stays within [2^-126, 2^126], so that it always has an inverse.
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
  // Parameters since the last update(): the first count_; those behind them a step has undone.
  mutable std::vector<const void*> divided_;
  const Ref<ControlCell> count_ = control_cell(0, ControlCell::Mark);
};

}  // namespace brrr::optim
