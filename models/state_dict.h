#pragma once
// Named tensors: what models, optimisers and checkpoints exchange.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace brrr {

/// Tensors by name, in the order of their names.
using StateDict = std::map<std::string, Tensor>;
using NamedTensor = std::pair<std::string, Tensor>;

/// Anything else that a checkpoint keeps, e.g. a position in the data.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual StateDict state_dict() const = 0;
  /// Throws what load_state_dict would throw.
  virtual void check_state_dict(const StateDict& dict) const = 0;
  virtual void load_state_dict(const StateDict& dict) = 0;
};

/// The tensors as handles without history that share their memory.
StateDict detached(const std::vector<NamedTensor>& tensors);
/// Throws brrr::Error, listing every missing, unexpected and mismatched (shape, dtype) name, unless
/// `dict` can be copied into `targets`. Without `strict` names may be missing or unexpected.
void check_state(const std::string& what, const std::vector<NamedTensor>& targets,
                 const StateDict& dict, bool strict);
/// Copies the values of a checked `dict`, across devices where needed.
void copy_state(const std::vector<NamedTensor>& targets, const StateDict& dict);

/// check_state, strictly; then throws unless the numbers of these names, each with what it is
/// called, are in `dict` what they are in `mine`, of `kind`: a data set's batches would not be the
/// same.
void check_same_numbers(const std::string& what, const char* kind, const StateDict& mine,
                        const StateDict& dict,
                        const std::vector<std::pair<const char*, const char*>>& names);

/// A number as a 0-d float64 or int64 tensor, which keeps it exactly.
Tensor number(double v);
Tensor number(int64_t v);

}  // namespace brrr
