#pragma once
// Training state that lives on one rank each (ZeRO: Rajbhandari et al., 2020, stages 1 and 2).

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/op.h"
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
  static std::shared_ptr<Sharding> make(const std::vector<NamedTensor>& parameters, bool gradients);
  /// That of these parameters; null if they have none. Throws brrr::Error if only some have it.
  static std::shared_ptr<Sharding> of(const std::vector<Tensor>& parameters);
  ~Sharding();

  struct Known {
    Cuts cuts;  ///< Of a parameter's elements, as they lie in memory: what belongs to which rank.
    std::string name;
    Tensor parameter, made;  ///< As it is, as it was.
    /// What this rank updates: the parameter, a leaf [n] in its memory, or undefined.
    Tensor own = {};
    bool divided = false;
    /// Not 0: there is a gradient of it, on whatever rank. A step that throws puts it back.
    Ref<ControlCell> used = control_cell(0, ControlCell::Mark);
    std::unique_ptr<Buckets> parts = nullptr;  ///< That norms gather.
  };
  const Known& known(const Tensor& parameter) const { return known_.at(parameter.impl()); }
  bool used(const Tensor& parameter) const { return known(parameter).used->value != 0; }
  void set_used(const Tensor& parameter) const { set_used(known(parameter), true); }
  /// Whether gradients are kept by their owners, of several ranks.
  bool gradients() const { return gradients_; }
  /// The gradient of what this rank updates, undefined if there is none.
  Tensor own_gradient(const Tensor& parameter) const;
  /// Of a parameter's gradient, which has been summed, `scale` times the own part is added to what
  /// that has, and nothing else is left.
  void keep_own_gradient(const Tensor& parameter, double scale) const;
  /// Where a sharding keeps gradients of these, it has none any more: zero_grad() of optimisers and
  /// modules.
  static void forget_gradients(const std::vector<Tensor>& parameters);
  /// The 2-norms of these used parameters' gradients, whose parts are with their owners, each 0-d:
  /// the bits of norm_of() the whole, of which only sums of chunks are sent. Where there is one
  /// chunk, and of GPUs, which fold a row otherwise than its parts, a divided one is gathered. A
  /// call of all ranks.
  std::vector<Tensor> norms_of_parts(const std::vector<Tensor>& parameters) const;
  /// Throws unless the parameter has the memory that it had when this was made.
  void check_in_place(const char* who, const Tensor& parameter) const;
  /// Throws if gradients are kept by their owners and the parameter has one besides.
  void check_exchanged(const char* who, const Tensor& parameter) const;
  static constexpr const char* kMend = "move or convert the model before DataParallel";

 private:
  Sharding() = default;
  static void set_used(const Known& known, bool used);
  Tensor sums_of_own(const Tensor& parameter) const;
  std::unordered_map<const TensorImpl*, Known> known_;
  bool gradients_ = false;
};

/// What an optimiser needs to know of its parameters' sharding.
class ParameterShares : NotCopied {
 public:
  /// Of parameters that are sharded. All ranks make it at the same point.
  ParameterShares(std::shared_ptr<Sharding> sharding, const std::vector<Tensor>& parameters);

  const std::shared_ptr<Sharding>& sharding() const { return sharding_; }
  /// The owners' values of those that have a gradient, on every rank; in place.
  void send() const;
  /// State "<i>.<name>" of all ranks, on rank 0; on the others their own. A call of all ranks.
  /// `elsewhere` is what the other ranks have.
  StateDict gathered(const StateDict& own, const std::vector<NamedTensor>& elsewhere) const;
  /// The same state, of all parameters' sizes: what is a part is replaced by zeros without memory.
  std::vector<NamedTensor> whole(std::vector<NamedTensor> state) const;
  /// Whether the dict has more than what gathered() gives to a rank but the first.
  bool is_whole(const StateDict& dict) const;
  /// Of such a dict what this rank has, and the entries of no parameter.
  StateDict own_part(const StateDict& dict) const;

 private:
  const Tensor* parameter_of(const std::string& name) const;
  std::shared_ptr<Sharding> sharding_;
  std::vector<Tensor> parameters_;
  std::unique_ptr<Buckets> values_;
};

/// A gradient's 2-norm, in float32 at least.
Tensor norm_of(const Tensor& gradient);

}  // namespace brrr::dist
