#include "models/optim.h"

#include <algorithm>
#include <cmath>

#include "core/address_set.h"
#include "core/check.h"
#include "core/context.h"
#include "models/data_parallel.h"
#include "models/sharding.h"
#include "ops/dist.h"
#include "ops/factory_ops.h"
#include "ops/library_ops.h"
#include "ops/pointwise_ops.h"

namespace brrr::optim {

void check_number(const char* who, const char* what, double v) {
  BRRR_CHECK(std::isfinite(v) && v >= 0, "{}: {} must be finite and not negative, got {}", who,
             what, v);
}

Optimizer::Optimizer(const char* name, std::vector<Tensor> parameters, double lr,
                     double weight_decay)
    : name_(name), parameters_(std::move(parameters)) {
  check_number(name, "lr", lr);
  check_number(name, "weight_decay", weight_decay);
  BRRR_CHECK(!parameters_.empty(), "{}: there are no parameters; pass model.parameters()", name);
  AddressSet seen;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    BRRR_CHECK(p.defined() && is_floating(p.dtype()) && p.is_leaf(),
               "{}: parameter {} ({}) must be a floating leaf", name, i, describe(p));
    BRRR_CHECK(seen.insert(p.impl()), "{}: parameter {} is listed twice", name, i);
    devices_.push_back(p.device());
    dtypes_.push_back(p.dtype());
  }
  lr_ = control_cell(lr);
  weight_decay_ = control_cell(weight_decay);
  sharding_ = dist::Sharding::of(parameters_);
  if (!sharding_) return;
  dist::Division division{.halves = dist::Halves::Share};
  for (const Tensor& p : parameters_) division.cuts.push_back(sharding_->entry(p).cuts);
  send_buckets_ = std::make_unique<dist::Buckets>(parameters_, INT64_MAX, 1, division);
}

Optimizer::~Optimizer() = default;

const Tensor& Optimizer::own(size_t i) const {
  return sharding_ ? sharding_->entry(parameters_[i]).own : parameters_[i];
}

void Optimizer::zero_grad(bool set_to_none) const {
  NoGradGuard guard;
  // Parameters with a sharded gradient, for which p.grad() is undefined.
  std::vector<bool> kept;  // Empty: none.
  if (!set_to_none && sharding_ && sharding_->gradients()) {
    for (const Tensor& p : parameters_) kept.push_back(sharding_->used(p));
  }
  dist::Sharding::forget_gradients(parameters_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    if (set_to_none) {
      p.set_grad({});
    } else if (p.grad().defined()) {
      // The gradient of a pass run with create_graph also loses its history.
      if (p.grad().requires_grad()) p.set_grad(p.grad().detach());
      p.grad().zero_();
    } else if (p.requires_grad() || (!kept.empty() && kept[i])) {
      p.set_grad(zeros_like(p));
    }
  }
}

void Optimizer::step(const Tensor& skip) {
  BRRR_CHECK(!skip.defined() || (skip.dtype() == kBool && skip.dim() == 0),
             "{}: skip is {}; give a 0-d bool, as GradScaler::unscale_ returns it", name_,
             describe(skip));
  BRRR_CHECK(sharding_ == dist::Sharding::of(parameters_),
             "{}: its parameters were sharded after it was made; make the optimiser after the "
             "DataParallel",
             name_);
  dist::gradients_used(name_, parameters_, true);
  NoGradGuard guard;
  for (const Tensor& p : parameters_) {
    if (sharding_) sharding_->check_in_place(name_, p);
  }
  const auto gradient = [&](const Tensor& p) {
    return sharding_ ? sharding_->own_gradient(p) : p.grad();
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {  // Check all before updating the first.
    const Tensor& p = parameters_[i];
    const bool fits = p.device() == devices_[i] && p.dtype() == dtypes_[i];
    if (state_.empty() || fits || !gradient(p).defined()) continue;
    BRRR_CHECK(p.device() == devices_[i],
               "{}: parameter {} is on {}, its state on {}; make the optimiser after "
               "model.to(device)",
               name_, i, brrr::name(p.device()), brrr::name(devices_[i]));
    fail("{}: parameter {} is {}, its state is of {}; make the optimiser after model.to(dtype)",
         name_, i, brrr::name(p.dtype()), brrr::name(dtypes_[i]));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (const Tensor g = gradient(parameters_[i]); g.defined()) update(i, own(i), g, skip);
  }
  if (sharding_ && dist::size() > 1) send_updated();
}

// Sends the parameters that have a gradient from their owners to every rank, in place.
void Optimizer::send_updated() const {
  std::vector<size_t> changed;
  std::vector<Tensor> values;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i];
    if (!(sharding_->gradients() ? sharding_->used(p) : p.grad().defined())) continue;
    changed.push_back(i);
    values.push_back(p);
    send_buckets_->begin(p, i, {});
  }
  send_buckets_->end(values, changed, [](size_t) { return std::vector<Tensor>(); });
}

double Optimizer::lr() const { return lr_->value; }
void Optimizer::set_lr(double v) {
  check_number(name_, "lr", v);
  set_control(*lr_, v);
}
double Optimizer::weight_decay() const { return weight_decay_->value; }
void Optimizer::set_weight_decay(double v) {
  check_number(name_, "weight_decay", v);
  set_control(*weight_decay_, v);
}

// --- state --------------------------------------------------------------------------------------

Tensor Optimizer::add_state(size_t i, const char* name, const Tensor& t) {
  return state_.emplace_back(State{fmt::format("{}.{}", i, name), i, t}).tensor;
}

// 16-bit floats have two or three digits, too few for a mean whose updates are a thousandth of it.
Tensor Optimizer::zeros_for(size_t i) const {
  const Tensor& p = parameters_[i];
  const DType t = promote(p.dtype(), kFloat32);
  if (!own(i).defined()) return zeros({}, t, p.device()).expand(p.sizes());
  return zeros(own(i).sizes(), t, p.device());
}

std::vector<NamedTensor> Optimizer::scalars() const {
  return {{"lr", number(lr())}, {"weight_decay", number(weight_decay())}};
}

StateDict Optimizer::state_dict() const {
  BRRR_CHECK(!sharding_ || !context.recorder,
             "a sharded optimiser's state is gathered outside of the step");
  StateDict dict;
  for (const State& s : state_) {  // gathered() is collective: the same order on all ranks.
    Tensor t = s.tensor.detach();
    if (sharding_ && dist::size() > 1) t = sharding_->gathered(parameters_[s.parameter], t);
    if (own(s.parameter).defined() || dist::rank() == 0) dict[s.name] = t;
  }
  for (const auto& [name, t] : scalars()) dict[name] = t;
  return dict;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, parameter, t] : state_) {
    if (own(parameter).defined()) bytes += t.numel() * static_cast<int64_t>(itemsize(t.dtype()));
  }
  return bytes;
}

void Optimizer::check_state_dict(const StateDict& dict) const {
  std::vector<NamedTensor> all;
  const bool whole = is_whole(dict);
  for (const auto& [name, parameter, t] : state_) {
    // Also check state that this rank has no part of, or it would load what other ranks reject.
    if (!whole && !own(parameter).defined()) continue;
    const IntList sizes = parameters_[parameter].sizes();
    const bool part = whole && t.dim() > 0 && t.sizes() != sizes;
    all.emplace_back(name, part ? zeros({}, t.dtype(), t.device()).expand(sizes) : t);
  }
  for (auto& n : scalars()) all.push_back(n);
  check_state(std::string(name_) + "::load_state_dict", all, dict, true);
  check_number(name_, "lr", dict.at("lr").item<double>());
  check_number(name_, "weight_decay", dict.at("weight_decay").item<double>());
}

// Whether the dict is a complete one, as rank 0's state_dict() returns, and not this rank's part.
bool Optimizer::is_whole(const StateDict& dict) const {
  if (!sharding_ || dist::rank() == 0) return true;
  return std::ranges::any_of(state_, [&](const State& s) {
    const auto at = dict.find(s.name);
    if (at == dict.end() || !at->second.defined()) return false;
    const Tensor part = sharding_->own_part(parameters_[s.parameter], at->second);
    return !own(s.parameter).defined() || part.sizes() != at->second.sizes();
  });
}

void Optimizer::load_state_dict(const StateDict& dict) {
  check_state_dict(dict);
  std::vector<NamedTensor> targets;
  StateDict parts;
  for (const auto& [name, parameter, t] : state_) {
    if (!own(parameter).defined()) continue;
    targets.emplace_back(name, t);
    const Tensor& saved = dict.at(name);
    parts[name] = sharding_ ? sharding_->own_part(parameters_[parameter], saved) : saved;
  }
  copy_state(targets, parts);
  set_lr(dict.at("lr").item<double>());
  set_weight_decay(dict.at("weight_decay").item<double>());
}

SGD::SGD(std::vector<Tensor> p, const SGDOptions& o)
    : Optimizer("SGD", std::move(p), o.lr, o.weight_decay), options_(o) {
  check_number("SGD", "momentum", o.momentum);
  BRRR_CHECK(!o.nesterov || o.momentum > 0, "SGD: nesterov needs a momentum above 0");
  for (size_t i = 0; o.momentum > 0 && i < parameters().size(); ++i) {
    buffers_.push_back(add_state(i, "momentum_buffer", zeros_for(i)));
  }
}

void SGD::update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) {
  if (buffers_.empty()) {
    sgd_step_(p, g, lr_cell(), weight_decay_cell(), skip);
  } else {
    auto* step = options_.nesterov ? sgd_nesterov_step_ : sgd_momentum_step_;
    step(p, g, buffers_[i], lr_cell(), options_.momentum, weight_decay_cell(), skip);
  }
}

Adam::Adam(std::vector<Tensor> p, const AdamOptions& o) : Adam("Adam", std::move(p), o) {}

Adam::Adam(const char* name, std::vector<Tensor> p, const AdamOptions& o)
    : Optimizer(name, std::move(p), o.lr, o.weight_decay),
      constants_{o.betas.first, o.betas.second, o.eps} {
  for (double beta : {o.betas.first, o.betas.second}) {
    BRRR_CHECK(beta >= 0 && beta < 1, "{}: betas must be in [0, 1), got {}", name, beta);
  }
  check_number(name, "eps", o.eps);
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Device device = parameters()[i].device();
    AdamState& s = states_.emplace_back();
    s.exp_avg = add_state(i, "exp_avg", zeros_for(i));
    s.exp_avg_sq = add_state(i, "exp_avg_sq", zeros_for(i));
    s.beta1_power = add_state(i, "beta1_power", ones({}, kFloat64, device));
    s.beta2_power = add_state(i, "beta2_power", ones({}, kFloat64, device));
    // Not saved: every step recomputes them from the powers before they are read.
    s.step_factor = zeros({}, s.exp_avg.dtype(), device);
    s.root_factor = zeros({}, s.exp_avg.dtype(), device);
  }
}

void Adam::check_state_dict(const StateDict& dict) const {
  Optimizer::check_state_dict(dict);
  for (const auto& [name, t] : dict) {
    const double power = name.ends_with("_power") ? t.item<double>() : 1;
    BRRR_CHECK(power >= 0 && power <= 1, "load_state_dict: {} is {}, not a power of a beta", name,
               power);
  }
}

void Adam::update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) {
  adam_scalars_(states_[i], constants_, skip);
  adam_step_(p, g, states_[i], lr_cell(), constants_, weight_decay_cell(), skip);
}

AdamW::AdamW(std::vector<Tensor> p, const AdamWOptions& o)
    : Adam("AdamW", std::move(p),
           {.lr = o.lr, .betas = o.betas, .eps = o.eps, .weight_decay = o.weight_decay}),
      no_decay_(control_cell(0)) {
  for (const Tensor& t : parameters()) decays_.push_back(!o.decay || o.decay(t));
}

void AdamW::update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) {
  adam_scalars_(states_[i], constants_, skip);
  const ControlCell& decay = decays_[i] ? weight_decay_cell() : *no_decay_;
  adamw_step_(p, g, states_[i], lr_cell(), constants_, decay, skip);
}

// --- clipping -----------------------------------------------------------------------------------

// Identifies the set of elements of a storage that a tensor covers, independent of its number and
// order of dims: pairs of stride and size, sorted, with contiguous dims merged.
static std::vector<std::pair<int64_t, int64_t>> elements_of(const Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> dims, merged;
  for (int d = 0; d < t.dim(); ++d) dims.emplace_back(t.strides()[d], t.sizes()[d]);
  std::ranges::sort(dims);
  for (const auto& [stride, size] : dims) {
    if (size == 1) continue;
    if (!merged.empty() && stride == merged.back().first * merged.back().second)
      merged.back().second *= size;
    else
      merged.emplace_back(stride, size);
  }
  return merged;
}

std::vector<Tensor> distinct_gradients(const std::vector<Tensor>& parameters) {
  const auto sharding = dist::Sharding::of(parameters);
  std::vector<Tensor> distinct;
  AddressSet storages;
  for (const Tensor& p : parameters) {
    const bool part = sharding && sharding->gradients();
    const Tensor g = part ? sharding->own_gradient(p) : p.grad();
    if (!g.defined()) continue;
    const auto same = [&](const Tensor& d) {
      return d.impl()->storage == g.impl()->storage && d.storage_offset() == g.storage_offset() &&
             elements_of(d) == elements_of(g);
    };
    if (storages.insert(g.impl()->storage) || std::ranges::none_of(distinct, same)) {
      distinct.push_back(g);
    }
  }
  return distinct;
}

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  BRRR_CHECK(max_norm >= 0, "clip_grad_norm_: max_norm must not be negative, got {}", max_norm);
  dist::gradients_used("clip_grad_norm_", parameters);
  NoGradGuard guard;
  const auto sharding = dist::Sharding::of(parameters);
  const bool apart = sharding && sharding->gradients();
  std::vector<Tensor> norms, used;
  bool any_double = false;
  for (const Tensor& p : parameters) {
    const Tensor g = p.grad();
    if (!(apart ? sharding->used(p) : g.defined())) continue;
    any_double |= (apart ? p : g).dtype() == kFloat64;
    apart ? used.push_back(p) : norms.push_back(dist::norm_of(g));
  }
  if (norms.empty() && used.empty()) {
    return zeros({}, parameters.empty() ? default_device() : parameters[0].device());
  }
  if (apart) norms = sharding->norms_of_parts(used);
  for (Tensor& n : norms) n = n.to(any_double ? kFloat64 : kFloat32);
  const Tensor total = stack(norms).norm();
  if (std::isinf(max_norm)) return total;
  // PyTorch's formula: NaN and infinite norms pass through.
  const Tensor scale = minimum(max_norm / (total + 1e-6), 1.0);
  for (const Tensor& g : distinct_gradients(parameters)) g.mul_(scale);
  return total;
}

}  // namespace brrr::optim
