#pragma once
// Optimisers. All state is made in the constructor, so that a recorded step creates nothing, and
// step counts live on the device, so that a frozen step advances them. Moments of rows without
// gradients become zero before they would be denormal numbers (ops/optimizer_ops.h).

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "models/state_dict.h"
#include "ops/optimizer_ops.h"

namespace brrr::dist {
class Buckets;
class Sharding;
}  // namespace brrr::dist

namespace brrr::optim {

/// Throws, naming who wants what, unless v is finite and not negative.
void check_number(const char* who, const char* what, double v);

/// The base: parameters, the learning rate, and state that can be saved. Of parameters that a
/// DataParallel shards each rank has the state of its own ones: step(), state_dict() and what is
/// below for gradients are calls of all ranks then.
class Optimizer : NotCopied {
 public:
  virtual ~Optimizer();

  const std::vector<Tensor>& parameters() const { return parameters_; }
  /// Marks all gradients undefined. If not `set_to_none`, fills them with zeros instead (making
  /// those that are undefined), so that the first of several backward passes adds to them as the
  /// others do: with k micro-steps between updates a graph-mode step then has two recordings, with
  /// and without the update; otherwise it has a third, of the backward pass that finds no
  /// gradients.
  void zero_grad(bool set_to_none = true) const;
  /// Updates every parameter that has a gradient; the others keep their value, state and step.
  /// `skip`, a 0-d bool, is what GradScaler::unscale_ gives: where it holds, parameters,
  /// state and step counts keep their values. It is not read on the host.
  void step(const Tensor& skip = {});

  /// May be set at any time, also between calls of a recorded step, without a new recording.
  double lr() const;
  void set_lr(double lr);
  double weight_decay() const;
  void set_weight_decay(double v);

  /// State tensors as "<parameter>.<name>" (they share memory), "lr" and "weight_decay". Where it
  /// is sharded, rank 0 gets that of all ranks.
  StateDict state_dict() const;
  /// Throws what load_state_dict would throw.
  virtual void check_state_dict(const StateDict& dict) const;
  /// Copies the values in. Names, shapes and dtypes are checked before anything changes.
  void load_state_dict(const StateDict& dict);
  /// Of the state that this process has.
  int64_t state_bytes() const;

 protected:
  Optimizer(const char* name, std::vector<Tensor> parameters, double lr, double weight_decay);
  /// What this process updates, and so has the state of: parameter i, a part of it as a row of
  /// elements, or nothing.
  const Tensor& own(size_t i) const;
  /// Names a tensor of parameter i's state; returns it.
  Tensor add_state(size_t i, const char* name, const Tensor& t);
  /// Zeros like own(i), in float32 at least; of another rank's parameter without memory.
  Tensor zeros_for(size_t i) const;
  /// The step of own(i), p, or none where `skip`, which may be undefined, holds.
  virtual void update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) = 0;
  const ControlCell& lr_cell() const { return *lr_; }
  const ControlCell& weight_decay_cell() const { return *weight_decay_; }

 private:
  std::vector<NamedTensor> numbers() const;
  bool is_whole(const StateDict& dict) const;
  void send() const;
  struct State {
    std::string name;
    size_t parameter;
    Tensor tensor;  ///< Without memory where own(parameter) is undefined.
  };
  const char* name_;
  std::vector<Tensor> parameters_;
  std::vector<Device> devices_;  ///< Of the parameters, when their state was made.
  std::vector<DType> dtypes_;    ///< The same.
  std::vector<State> state_;
  Ref<ControlCell> lr_, weight_decay_;
  std::shared_ptr<dist::Sharding> sharding_;  ///< Null: this process has all state.
  std::unique_ptr<dist::Buckets> values_;     ///< The parameters', which their owners send.
};

struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;  ///< Added to the gradient: weight_decay * p.
};

/// Stochastic gradient descent, with momentum as PyTorch defines it.
class SGD : public Optimizer {
 public:
  SGD(std::vector<Tensor> parameters, const SGDOptions& options);

 private:
  void update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) override;
  SGDOptions options_;
  std::vector<Tensor> buffers_;
};

struct AdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;  ///< Added to the gradient: weight_decay * p.
};

struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< Decoupled: p *= 1 - lr * weight_decay.
  /// Which parameters decay; all if empty. Asked once, in the constructor. Biases and norms are
  /// usually left out: `.decay = [](const Tensor& p) { return p.dim() >= 2; }`.
  std::function<bool(const Tensor&)> decay = {};
};

/// Adam (Kingma and Ba, 2015), weight decay as an L2 penalty.
class Adam : public Optimizer {
 public:
  Adam(std::vector<Tensor> parameters, const AdamOptions& options);
  void check_state_dict(const StateDict& dict) const override;

 protected:
  Adam(const char* name, std::vector<Tensor> parameters, const AdamOptions& options);
  void update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) override;
  AdamConstants constants_;
  std::vector<AdamState> states_;
};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
class AdamW : public Adam {
 public:
  AdamW(std::vector<Tensor> parameters, const AdamWOptions& options);

 private:
  void update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) override;
  std::vector<bool> decays_;
  Ref<ControlCell> no_decay_;
};

/// The gradients of parameters that have one; a tensor that several share comes once.
std::vector<Tensor> distinct_gradients(const std::vector<Tensor>& parameters);

/// Scales the gradients so that their common 2-norm is at most `max_norm`; returns the norm before,
/// 0-d. Where `max_norm` is infinite it only measures. Nothing is read on the host. A gradient
/// tensor that several leaves share is scaled once. Throws where a DataParallel has yet to exchange
/// them.
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace brrr::optim
