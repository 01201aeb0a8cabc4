#pragma once
// Reverse-mode differentiation over the tape.

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace brrr {

struct GradOptions {
  bool create_graph = false;  ///< The gradients can be differentiated again.
  bool retain_graph = false;  ///< The tape can be run through again (create_graph implies it).
  bool allow_unused = false;  ///< An input that the outputs do not depend on gives an undefined
                              ///< tensor instead of an error.
};

/// d(sum of outputs)/d(inputs), weighted by `grad_outputs` where given (same shapes as outputs;
/// needed for outputs of more than one element). Leaves' grad fields are not touched, and only the
/// part of the tape that leads to an input is run.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         GradOptions options = {}, const std::vector<Tensor>& grad_outputs = {});

/// Accumulates into the grad of every leaf that the outputs depend on. With create_graph a leaf's
/// gradient holds its history, which holds the leaf: neither is freed until the gradient is removed
/// (zero_grad()). grad() returns gradients instead.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
              GradOptions options = {});

/// The result of gradcheck.
struct GradcheckResult {
  bool ok = true;
  double worst = 0;    ///< Largest |analytic - numeric| / (1 + |numeric|).
  std::string report;  ///< Names the input, element and both values of the worst one.
  explicit operator bool() const { return ok; }
};
struct GradcheckOptions {
  double step = 1e-6;         ///< Of the central difference, times an input's size if above 1;
                              ///< small inputs may want a smaller one.
  double tolerance = 1e-6;    ///< On |analytic - numeric| / (1 + |numeric|).
  bool second_order = false;  ///< Also check the gradient's gradient, by the inputs and, as one
                              ///< more input, by the output's gradient.
};

/// Compares the gradient of `fn`, a function of float64 tensors, with central differences. Every
/// output element is weighted by a fixed pseudo-random number, every input element is tested.
/// Inputs of other floating dtypes are an error; integer and bool inputs are held fixed.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          const std::vector<Tensor>& inputs, GradcheckOptions options = {});

}  // namespace brrr
