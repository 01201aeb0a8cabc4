#pragma once
// Module: named parameters, buffers and submodules.

#include <string>
#include <vector>

#include "core/address_set.h"
#include "core/op.h"
#include "models/state_dict.h"

namespace brrr::models {

/// The base of every layer and model. Parameters, buffers and submodules are registered under
/// names, which appear in checkpoints ("fc1.weight") and profiles. Neither copied nor moved,
/// because a parent points to its children.
class Module : NotCopied {
 public:
  virtual ~Module() = default;

  /// The computation. Models with several inputs add their own members instead.
  virtual Tensor forward(const Tensor& x);
  /// Calls forward within a scope of the module's name, which profiles and check_numerics report.
  Tensor operator()(const Tensor& x);

  /// Adds a submodule, which must outlive this module. Names are unique and have no dots.
  void register_module(const std::string& name, Module& child);
  /// Registers `t`, a floating leaf, as a parameter that requires grad; returns it.
  Tensor register_parameter(const std::string& name, const Tensor& t);
  /// Registers a tensor that is part of the state but not trained; returns it.
  Tensor register_buffer(const std::string& name, const Tensor& t);

  /// Each parameter once, in the order of registration, parents before children.
  std::vector<Tensor> parameters() const;
  std::vector<NamedTensor> named_parameters() const;
  std::vector<NamedTensor> named_buffers() const;
  int64_t num_parameters() const;
  void zero_grad() const;

  /// Sets training mode (dropout etc.) here and in all children. Undone if called in a step that
  /// throws.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_->value != 0; }

  /// Moves or converts parameters, buffers and gradients. Handles stay valid, but an optimiser's
  /// state is not moved: construct it afterwards. A dtype applies to floating tensors only.
  void to(Device device);
  void to(DType dtype);

  /// Parameters and buffers; the handles share memory with the module.
  StateDict state_dict() const;
  /// Throws what load_state_dict would throw.
  void check_state_dict(const StateDict& dict, bool strict = true) const;
  /// Copies the values in. Names, shapes and dtypes are checked before anything changes.
  void load_state_dict(const StateDict& dict, bool strict = true) const;

  /// The name in the parent; empty for a root.
  const std::string& name() const { return name_; }

 private:
  struct Entry {
    std::string name;
    Tensor tensor;
    bool buffer;
  };
  template <class F> std::vector<NamedTensor> tensors(const F& f) const;
  template <class F> void visit(const std::string& path, const F& f) const;
  template <class F> void convert(const char* what, const F& f) const;
  std::vector<NamedTensor> state() const;
  void add_parameters(std::vector<Tensor>& to, AddressSet& seen) const;
  void check_name(const char* what, const std::string& name) const;

  std::string name_;
  Ref<ControlCell> training_ = control_cell(1, ControlCell::Mode);
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, Module*>> children_;
};

/// Describes the first of the tensors that holds a NaN or infinity, as
/// "fc1.weight, float32[8, 6]: 3 of 48 elements are not finite"; "" if there is none. Ignores
/// undefined and integer tensors. Reads on the host, so call it outside a recorded step.
std::string first_nonfinite(const std::vector<NamedTensor>& tensors);
/// The same over a module's parameters, each followed by its gradient ("fc1.weight.grad"; with
/// DataParallel's shard_gradients this rank's part of it), and then its buffers. For training loops
/// in which StepOptions::check_numerics would be too slow:
///
///     if (!std::isfinite(loss.item<float>())) {
///       throw std::runtime_error("step 123: " + brrr::models::first_nonfinite(model));
///     }
///
/// Once the update has run, everything it wrote is bad: check before it, or skip it as GradScaler
/// does. To find the op at fault, run the step again from a checkpoint with check_numerics.
std::string first_nonfinite(const Module& module);

}  // namespace brrr::models
