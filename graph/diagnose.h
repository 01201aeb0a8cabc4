#pragma once
// brrr::diagnose: what bounds a step, and what the other mode would make of it.

#include <functional>
#include <initializer_list>
#include <string>

#include "graph/profile.h"
#include "graph/step.h"

namespace brrr {

/// What a call costs whatever it computes, in nanoseconds: of steps over one element, per
/// operation.
struct LaunchCosts {
  double eager_ns = 0;  ///< Checked, dispatched, run, and recorded for backward.
  double match_ns = 0;  ///< Compared with the recorded one while the function of a step runs.
  double graph_ns = 0;  ///< Run by a replay.
  double step_ns = 0;   ///< A call of a recorded step that does nothing, whole.
  double plain_eager_ns = 0, plain_match_ns = 0;  ///< Without gradients.
};
/// Measured at the first call, in some tens of milliseconds; kept on disk with the kernels, for
/// every later process. With `anew` measured again.
LaunchCosts launch_costs(Device device = kCPU, bool anew = false);

/// What a step's time is made of. Prints as its text.
struct Diagnosis {
  Mode mode;        ///< Of the step.
  double us = 0;    ///< Of one call, the median, measured without a profile.
  TimeSplit split;  ///< Of that time: compute and memory as a profile of further calls found them.
  /// Of its overhead what lies in kernels of 2 us and more, and the one with most of it: no launch,
  /// but work that is far from the limits, a function of float64 or a sort.
  double slow_us = 0;
  std::string slowest;
  /// A call in each mode, measured in turns: one of the two is `us`. graph_us is 0 where a replay
  /// could not be had, or Mode::Auto kept eager; why, if it cannot be recorded.
  double eager_us = 0, graph_us = 0;
  std::string refused;
  /// Of an eager step, what graph mode was expected to take before it was tried: from eager
  /// kernels' times, the limits and launch_costs(). 0 where graph_us is.
  double predicted_us = 0;
  double gain() const { return graph_us > 0 ? eager_us / graph_us : 0; }
  double predicted_gain() const { return predicted_us > 0 ? eager_us / predicted_us : 0; }
  /// "overhead-bound: 71 % of the step; graph mode would give about 3.4x"; in the next line what
  /// it gave, and the parts.
  std::string text;
  const char* c_str() const { return text.c_str(); }
};

namespace graph {
Diagnosis diagnose(StepBase& step, Device device, const std::function<void(StepBase&)>& call_by);
}

/// Runs the step for about a second, and at least two dozen calls (real ones, which train), and
/// says whether compute, memory or overhead bounds it and what graph mode gives: half of the calls
/// run in the other mode, in turns, kernels of its own built for them if need be. Throws what the
/// step throws, and brrr::Error inside a recorded step or under a Profile.
template <class F, class... T> Diagnosis diagnose(Step<F>& step, const T&... args) {
  Device device = default_device();
  for (const Tensor* x : std::initializer_list<const Tensor*>{&args...}) {
    if (x->defined() && device == kCPU) device = x->device();
  }
  return graph::diagnose(step.base(), device,
                         [&](graph::StepBase& by) { static_cast<void>(step.run_by(by, args...)); });
}

}  // namespace brrr
