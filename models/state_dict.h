#pragma once
// State dicts: the named tensors that models, optimisers and checkpoints exchange.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace brrr {

/// Tensors by name, ordered by name.
using StateDict = std::map<std::string, Tensor>;
using NamedTensor = std::pair<std::string, Tensor>;

/// Any other state that a checkpoint stores, e.g. a position in the data.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual StateDict state_dict() const = 0;
  /// Throws what load_state_dict would throw.
  virtual void check_state_dict(const StateDict& dict) const = 0;
  virtual void load_state_dict(const StateDict& dict) = 0;
};

/// Detached handles to the tensors, which share their memory.
StateDict detached(const std::vector<NamedTensor>& tensors);
/// Throws brrr::Error, listing every missing, unexpected and mismatched (shape, dtype) name, unless
/// `dict` can be copied into `targets`. Without `strict` names may be missing or unexpected.
void check_state(const std::string& what, const std::vector<NamedTensor>& targets,
                 const StateDict& dict, bool strict);
/// Copies the values of a checked `dict`, across devices where needed.
void copy_state(const std::vector<NamedTensor>& targets, const StateDict& dict);

/// check_state, strictly; then throws unless `dict` and `mine` have equal scalars for each of
/// `names`, pairs of a key and its name in messages: otherwise a data set's batches would differ.
/// `kind` is the loading object's name in messages.
void check_same_values(const std::string& what, const char* kind, const StateDict& mine,
                       const StateDict& dict,
                       const std::vector<std::pair<const char*, const char*>>& names);

/// A scalar as a 0-d float64 or int64 tensor, without rounding.
Tensor number(double v);
Tensor number(int64_t v);

}  // namespace brrr
