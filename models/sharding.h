#pragma once
// Training state sharded over ranks (ZeRO: Rajbhandari et al., 2020, stages 1 and 2).

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/op.h"
#include "models/state_dict.h"
#include "ops/kinds/exchange_buckets.h"

namespace brrr::dist {

/// The assignment of a model's parameters to ranks. The owner of a parameter keeps its optimiser
/// state, updates it and sends it to the others. Large parameters are divided among all ranks by
/// ranges of elements; the others have one owner. Made by DataParallel, found by later optimisers.
class Sharding : NotCopied {
 public:
  /// Balances the bytes per rank. With `gradients` the gradients are sharded, too.
  static std::shared_ptr<Sharding> make(const std::vector<NamedTensor>& parameters, bool gradients);
  /// The sharding of these parameters; null if there is none. Throws brrr::Error unless all of them
  /// have the same one.
  static std::shared_ptr<Sharding> of(const std::vector<Tensor>& parameters);
  ~Sharding();

  struct Entry {
    Cuts cuts;  ///< Rank r owns elements [cuts[r], cuts[r + 1]) of the contiguous parameter.
    std::string name;
    Tensor parameter, original;  ///< The parameter, and a handle to its memory at make().
    /// What this rank updates: the parameter, a leaf [n] in its memory, or undefined.
    Tensor own = {};
    bool divided = false;
    /// Not 0: some rank has a gradient of it. Restored if a step throws.
    Ref<ControlCell> used = control_cell(0, ControlCell::Mark);
    std::unique_ptr<Buckets> norm_buckets = nullptr;  ///< Gather its gradient, for the norm.
  };
  const Entry& entry(const Tensor& parameter) const { return entries_.at(parameter.impl()); }
  bool used(const Tensor& parameter) const { return entry(parameter).used->value != 0; }
  void set_used(const Tensor& parameter, bool is_used) const;
  /// Whether gradients are sharded (over more than one rank).
  bool gradients() const { return gradients_; }
  /// The gradient of the part that this rank updates; undefined if there is none.
  Tensor own_gradient(const Tensor& parameter) const;
  /// This rank's range, 1-d, of a tensor shaped like a divided parameter; any other tensor
  /// unchanged.
  Tensor own_part(const Tensor& parameter, const Tensor& t) const;
  /// Gathers a tensor of the parameter's state on rank 0. The other ranks get back `t`, which may
  /// take no memory (an expanded zero). A collective call.
  Tensor gathered(const Tensor& parameter, const Tensor& t) const;
  /// Adds `scale` times this rank's part of the parameter's summed gradient to the own part's
  /// gradient, and drops the parameter's.
  void keep_own_gradient(const Tensor& parameter, double scale) const;
  /// Drops the sharded gradients of these parameters. Called by zero_grad() of optimisers and
  /// modules.
  static void forget_gradients(const std::vector<Tensor>& parameters);
  /// The 2-norms, each 0-d, of the sharded gradients of these used parameters, with the bits of
  /// norm_of() the complete gradients. Ranks exchange sums of squares by chunks only. A divided
  /// gradient is gathered if it has a single chunk, or on GPUs, which fold a row in another order
  /// than its parts. A collective call.
  std::vector<Tensor> norms_of_parts(const std::vector<Tensor>& parameters) const;
  /// Throws unless the parameter still has the memory that it had at make().
  void check_in_place(const char* who, const Tensor& parameter) const;
  /// Throws if gradients are sharded and the parameter itself has one.
  void check_exchanged(const char* who, const Tensor& parameter) const;
  static constexpr const char* kRemedy = "move or convert the model before DataParallel";

 private:
  Sharding() = default;
  Tensor sums_of_own(const Tensor& parameter) const;
  std::unordered_map<const TensorImpl*, Entry> entries_;
  bool gradients_ = false;
};

/// A gradient's 2-norm, at least float32.
Tensor norm_of(const Tensor& gradient);

}  // namespace brrr::dist
