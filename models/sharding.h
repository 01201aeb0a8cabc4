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
  void set_used(const Tensor& parameter, bool is_used) const;
  /// Whether gradients are kept by their owners, of several ranks.
  bool gradients() const { return gradients_; }
  /// The gradient of what this rank updates, undefined if there is none.
  Tensor own_gradient(const Tensor& parameter) const;
  /// Of a tensor of a divided parameter's size what belongs to this rank, as a row of elements;
  /// another tensor as it is.
  Tensor own_part(const Tensor& parameter, const Tensor& t) const;
  /// A tensor of the parameter's state, of all ranks on rank 0; on the others their own, which may
  /// be one without memory. A call of all ranks.
  Tensor gathered(const Tensor& parameter, const Tensor& t) const;
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
  Tensor sums_of_own(const Tensor& parameter) const;
  std::unordered_map<const TensorImpl*, Known> known_;
  bool gradients_ = false;
};

/// A gradient's 2-norm, in float32 at least.
Tensor norm_of(const Tensor& gradient);

}  // namespace brrr::dist
