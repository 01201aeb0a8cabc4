#pragma once
// Training state that lives on one rank each (ZeRO: Rajbhandari et al., 2020, stages 1 and 2).

#include <memory>
#include <unordered_map>
#include <vector>

#include "models/state_dict.h"
#include "ops/kinds/exchange_buckets.h"

namespace brrr::dist {

/// Which rank keeps what of a model's parameters: the state of their optimiser, by which it updates
/// them and sends them to the others. Large parameters are divided among all ranks, as ranges of
/// their elements; others belong to one. DataParallel makes it; optimisers made after that find it.
class Sharding : NotCopied {
 public:
  /// Ranks get about as many bytes each. With `gradients` those, too, are kept by their owners
  /// alone.
  static std::shared_ptr<Sharding> make(const std::vector<Tensor>& parameters, bool gradients);
  /// That of these parameters; null if they have none. Throws brrr::Error if only some have it.
  static std::shared_ptr<Sharding> of(const std::vector<Tensor>& parameters);
  ~Sharding();

  /// Of a parameter's elements, as they lie in memory: what belongs to which rank.
  const Cuts& cuts(const Tensor& parameter) const { return known(parameter).cuts; }
  /// What this rank updates: the parameter, a leaf [n] in its memory, or undefined.
  const Tensor& own(const Tensor& parameter) const { return known(parameter).own; }
  /// The gradient of own(), undefined if there is none.
  Tensor own_gradient(const Tensor& parameter) const;
  bool divided(const Tensor& parameter) const { return known(parameter).divided; }
  bool gradients() const { return gradients_; }
  /// Whether the step at hand has a gradient of it, on whatever rank.
  bool used(const Tensor& parameter) const { return known(parameter).used; }
  void set_used(const Tensor& parameter, bool used) { known_.at(parameter.impl()).used = used; }
  /// Of a parameter's gradient, which has been summed, nothing is left but that of own().
  void keep_own_gradient(const Tensor& parameter) const;
  /// The 2-norm of a used parameter's gradient, whose parts are with their owners: 0-d, on one rank
  /// and 0 on the others. A call of all ranks.
  Tensor norm_of_parts(const Tensor& parameter) const;

 private:
  Sharding() = default;
  struct Known {
    Cuts cuts;
    Tensor own = {};
    bool divided = false, used = false;
    std::unique_ptr<Buckets> parts = nullptr;  // Of one that is divided.
  };
  const Known& known(const Tensor& parameter) const { return known_.at(parameter.impl()); }
  std::vector<Tensor> parameters_;
  std::unordered_map<const TensorImpl*, Known> known_;
  bool gradients_ = false;
};

/// What an optimiser needs to know of its parameters' sharding.
class ParameterShares : NotCopied {
 public:
  /// Null if the parameters are not sharded. All ranks make it at the same point.
  static std::unique_ptr<ParameterShares> of(const std::vector<Tensor>& parameters);
  ~ParameterShares();

  const std::shared_ptr<Sharding>& sharding() const { return sharding_; }
  /// The owners' values of those that have a gradient, on every rank; in place.
  void send() const;
  /// State "<i>.<name>" of all ranks, on rank 0; on the others their own. A call of all ranks.
  StateDict gathered(const StateDict& own) const;
  /// Of such a dict what this rank has, and the entries of no parameter.
  StateDict own_part(const StateDict& dict) const;

 private:
  ParameterShares(std::shared_ptr<Sharding> sharding, const std::vector<Tensor>& parameters);
  const Tensor* parameter_of(const std::string& name) const;
  std::shared_ptr<Sharding> sharding_;
  std::vector<Tensor> parameters_;
  std::unique_ptr<Buckets> values_;
};

/// A gradient's 2-norm, in float32 at least.
Tensor norm_of(const Tensor& gradient);
/// Sums of numbers about these parameters' gradients over the ranks, where each rank has its own
/// gradients only (and 0 for the others); else the numbers as they are.
Tensor over_ranks(const std::vector<Tensor>& parameters, const Tensor& own);

}  // namespace brrr::dist
