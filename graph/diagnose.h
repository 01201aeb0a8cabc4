#pragma once
// brrr::diagnose: what bounds a step, and how it runs in the other mode.

#include <functional>
#include <initializer_list>
#include <string>

#include "graph/profile.h"
#include "graph/step.h"

namespace brrr {

/// Fixed costs of a call, in nanoseconds, whatever it computes: measured on steps over one element,
/// per operation.
struct LaunchCosts {
  double eager_ns = 0;  ///< To check, dispatch, run, and record for backward.
  double match_ns = 0;  ///< To compare with the recorded op while a step's function runs.
  double graph_ns = 0;  ///< To run in a replay.
  double step_ns = 0;   ///< A whole call of a recorded step that does nothing.
  double plain_eager_ns = 0, plain_match_ns = 0;  ///< Without gradients.
};
/// Measured at the first call, in some tens of milliseconds; cached on disk with the kernels, for
/// every later process. With `anew` it measures again.
LaunchCosts launch_costs(Device device = kCPU, bool anew = false);

/// What a step's time consists of. Prints as its text.
struct Diagnosis {
  Mode mode;        ///< The step's own.
  double us = 0;    ///< The median time of a call, measured without a profile.
  TimeSplit split;  ///< Of `us`, with the compute and memory parts from a profile of further calls.
  /// Overhead in kernels of 2 us and more, and the kernel with most of it: not due to launches, but
  /// to work far from the limits, such as a float64 function or a sort.
  double slow_us = 0;
  std::string slowest;
  /// A call in each mode, measured in turns: one of the two is `us`. graph_us is 0 if there were no
  /// replays or Mode::Auto kept eager; `refused` says why the step cannot be recorded, if so.
  double eager_us = 0, graph_us = 0;
  std::string refused;
  /// For an eager step, the predicted time in graph mode: from eager kernels' times, the limits and
  /// launch_costs(), not from replays' times. 0 if graph_us is.
  double predicted_us = 0;
  double gain() const { return graph_us > 0 ? eager_us / graph_us : 0; }
  double predicted_gain() const { return predicted_us > 0 ? eager_us / predicted_us : 0; }
  /// "overhead-bound: 71 % of the step; graph mode would give about 3.4x"; then what it gave, and
  /// the parts.
  std::string text;
  const char* c_str() const { return text.c_str(); }
};

namespace graph {
Diagnosis diagnose(StepBase& step, Device device, const std::function<void(StepBase&)>& call_by);
}

/// Runs the step for about a second, and at least two dozen calls (real ones, which train), and
/// says whether compute, memory or overhead bounds it and what graph mode gives: half of the calls
/// run in the other mode, in turns, with kernels built for it if need be. Throws what the step
/// throws, and brrr::Error inside a recorded step or under a Profile.
template <class F, class... T> Diagnosis diagnose(Step<F>& step, const T&... args) {
  Device device = default_device();
  for (const Tensor* x : std::initializer_list<const Tensor*>{&args...}) {
    if (x->defined() && device == kCPU) device = x->device();
  }
  return graph::diagnose(step.base(), device,
                         [&](graph::StepBase& by) { static_cast<void>(step.run_by(by, args...)); });
}

}  // namespace brrr
