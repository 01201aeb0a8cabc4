#pragma once
// Optimisers. All state is allocated in the constructor, so that a recorded step creates nothing.
// Step counts live on the device, so that a frozen step advances them. Moments of rows without
// gradients are flushed to zero before they would become denormal (ops/optimizer_ops.h).

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

/// Throws unless v is finite and not negative; `who` and `what` name the caller and the value.
void check_number(const char* who, const char* what, double v);

/// The base: parameters, the learning rate, and state that can be saved. If a DataParallel shards
/// the parameters, each rank holds the state of its own part only; step(), state_dict() and
/// clip_grad_norm_ below are then collective calls.
class Optimizer : NotCopied {
 public:
  virtual ~Optimizer();

  const std::vector<Tensor>& parameters() const { return parameters_; }
  /// Marks all gradients undefined. If not `set_to_none`, fills them with zeros instead (creating
  /// undefined ones), so that the first of several backward passes accumulates like the others:
  /// with k micro-steps per update a graph-mode step then has two recordings, with and without the
  /// update; otherwise it has a third, for the backward pass that finds no gradients.
  void zero_grad(bool set_to_none = true) const;
  /// Updates every parameter that has a gradient; the others keep their value, state and step
  /// count. `skip`, a 0-d bool as GradScaler::unscale_ returns it: if true, parameters, state and
  /// step counts keep their values. It is not read on the host.
  void step(const Tensor& skip = {});

  /// May be set at any time, also between calls of a recorded step, without a new recording.
  double lr() const;
  void set_lr(double lr);
  double weight_decay() const;
  void set_weight_decay(double v);

  /// State tensors as "<parameter>.<name>" (they share memory), "lr" and "weight_decay". If the
  /// state is sharded, rank 0 gets that of all ranks.
  StateDict state_dict() const;
  /// Throws what load_state_dict would throw.
  virtual void check_state_dict(const StateDict& dict) const;
  /// Copies the values in. Names, shapes and dtypes are checked before anything changes.
  void load_state_dict(const StateDict& dict);
  /// Bytes of the state that this process holds.
  int64_t state_bytes() const;

 protected:
  Optimizer(const char* name, std::vector<Tensor> parameters, double lr, double weight_decay);
  /// The part of parameter i that this process updates and holds the state of: the parameter, a 1-d
  /// view of a range of its elements, or an undefined tensor.
  const Tensor& own(size_t i) const;
  /// Registers a tensor of parameter i's state under a name; returns it.
  Tensor add_state(size_t i, const char* name, const Tensor& t);
  /// Zeros shaped like own(i), at least float32; for another rank's parameter a zero expanded to
  /// its shape, which takes no memory.
  Tensor zeros_for(size_t i) const;
  /// Updates p, which is own(i), unless `skip` (may be undefined) is true.
  virtual void update(size_t i, const Tensor& p, const Tensor& g, const Tensor& skip) = 0;
  const ControlCell& lr_cell() const { return *lr_; }
  const ControlCell& weight_decay_cell() const { return *weight_decay_; }

 private:
  std::vector<NamedTensor> scalars() const;
  bool is_whole(const StateDict& dict) const;
  void send_updated() const;
  struct State {
    std::string name;
    size_t parameter;
    Tensor tensor;  ///< An expanded zero where own(parameter) is undefined.
  };
  const char* name_;
  std::vector<Tensor> parameters_;
  std::vector<Device> devices_;  ///< The parameters' at construction.
  std::vector<DType> dtypes_;    ///< The same.
  std::vector<State> state_;
  Ref<ControlCell> lr_, weight_decay_;
  std::shared_ptr<dist::Sharding> sharding_;     ///< Null: this process holds all state.
  std::unique_ptr<dist::Buckets> send_buckets_;  ///< Send buffers for the updated parameters.
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
  /// Which parameters decay; all if empty. Called once per parameter, in the constructor. Biases
  /// and norms are usually left out: `.decay = [](const Tensor& p) { return p.dim() >= 2; }`.
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

/// The defined gradients of the parameters; a tensor shared by several appears once.
std::vector<Tensor> distinct_gradients(const std::vector<Tensor>& parameters);

/// Scales the gradients so that their joint 2-norm is at most `max_norm`; returns the norm before
/// scaling, 0-d. With an infinite `max_norm` it only computes the norm. Nothing is read on the
/// host. A gradient tensor that several leaves share is scaled once. Throws if a DataParallel has
/// not exchanged the gradients yet.
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace brrr::optim
