#include "models/grad_scaler.h"

#include <cmath>

#include "core/address_set.h"
#include "core/check.h"
#include "core/context.h"
#include "models/data_parallel.h"
#include "models/sharding.h"
#include "ops/dist_ops.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::optim {

static constexpr double kMinScale = 0x1p-126, kMaxScale = 0x1p126;

GradScaler::GradScaler(const GradScalerOptions& o) : options_(o) {
  BRRR_CHECK(o.scale >= kMinScale && o.scale <= kMaxScale,
             "GradScaler: scale must be in [2^-126, 2^126], got {}", o.scale);
  BRRR_CHECK(o.growth >= 1 && std::isfinite(o.growth),
             "GradScaler: growth must be finite and at least 1, got {}", o.growth);
  BRRR_CHECK(o.backoff > 0 && o.backoff < 1, "GradScaler: backoff must be in (0, 1), got {}",
             o.backoff);
  BRRR_CHECK(o.interval >= 1, "GradScaler: interval must be at least 1, got {}", o.interval);
  scale_ = full({}, o.scale, kFloat32, o.device);
  good_steps_ = full({}, 0, kInt64, o.device);
}

Tensor GradScaler::scale(const Tensor& loss) const {
  BRRR_CHECK(loss.defined() && is_floating(loss.dtype()),
             "GradScaler::scale: the loss is {}; give a floating tensor", describe(loss));
  BRRR_CHECK(loss.device() == scale_.device(),
             "GradScaler::scale: the loss is on {}, the scale on {}; give the scaler that .device",
             name(loss.device()), name(scale_.device()));
  return loss.to(promote(loss.dtype(), kFloat32)) * scale_;
}

Tensor GradScaler::unscale_(const std::vector<Tensor>& parameters) const {
  dist::gradients_used("GradScaler::unscale_", parameters);
  divided_.resize(static_cast<size_t>(count_->value));
  AddressSet before;
  for (const void* p : divided_) before.insert(p);
  for (const Tensor& p : parameters) {
    BRRR_CHECK(!before.contains(p.impl()),
               "GradScaler::unscale_: the gradient of {} was divided since the last update(); call "
               "it once a step, after the last backward, and end the step with update()",
               describe(p));
    divided_.push_back(p.impl());
  }
  NoGradGuard guard;
  const Tensor inverse = 1.0 / scale_;
  // 0 * g is 0, or NaN where g is not finite, and so is a sum of it, which cannot overflow.
  std::vector<Tensor> zeros;
  for (const Tensor& g : distinct_gradients(parameters)) {
    g.mul_(inverse);
    zeros.push_back((g * 0.0).sum().to(kFloat32));
  }
  set_control(*count_, static_cast<double>(divided_.size()));
  // With sharded gradients a rank may have none while others do.
  const Tensor sum = zeros.empty() ? full({}, 0, kFloat32, options_.device) : stack(zeros).sum();
  const auto sharding = dist::Sharding::of(parameters);
  return isnan(sharding && sharding->gradients() ? dist::all_reduce(sum) : sum);
}

void GradScaler::update(const Tensor& skipped) const {
  BRRR_CHECK(skipped.defined() && skipped.dtype() == kBool && skipped.dim() == 0,
             "GradScaler::update: {} is not a result of unscale_", describe(skipped));
  set_control(*count_, 0);
  NoGradGuard guard;
  const Tensor good = good_steps_ + 1;
  const Tensor due = good >= options_.interval;
  const Tensor kept = where(due, scale_ * options_.growth, scale_);
  scale_.copy_(where(skipped, scale_ * options_.backoff, kept).clamp(kMinScale, kMaxScale));
  good_steps_.copy_(where(skipped | due, 0, good));
}

std::vector<NamedTensor> GradScaler::state() const {
  return {{"scale", scale_}, {"good_steps", good_steps_}};
}
StateDict GradScaler::state_dict() const { return detached(state()); }
void GradScaler::check_state_dict(const StateDict& dict) const {
  check_state("GradScaler::load_state_dict", state(), dict, true);
  const auto scale = dict.at("scale").item<double>();
  const auto good = dict.at("good_steps").item<int64_t>();
  BRRR_CHECK(scale >= kMinScale && scale <= kMaxScale && good >= 0 && good <= INT64_MAX / 2,
             "GradScaler::load_state_dict: a scale of {} after {} good steps is not a valid state",
             scale, good);
}
void GradScaler::load_state_dict(const StateDict& dict) const {
  check_state_dict(dict);
  copy_state(state(), dict);
  set_control(*count_, 0);
}

}  // namespace brrr::optim
