#pragma once
// brrr::diagnose: what bounds a step, and what the other mode would make of it.

#include <functional>
#include <string>

#include "graph/profile.h"
#include "graph/step.h"

namespace brrr {

/// What a step's time is made of. Prints as its text.
struct Diagnosis {
  Mode mode;        ///< Of the step.
  double us = 0;    ///< Of one call, the median, measured without a profile.
  TimeSplit split;  ///< Of that time: compute and memory as a profile of further calls found them.
  /// A call in each mode, measured in turns: one of the two is `us`. graph_us is 0 where a replay
  /// could not be had, or Mode::Auto kept eager.
  double eager_us = 0, graph_us = 0;
  double gain() const { return graph_us > 0 ? eager_us / graph_us : 0; }
  std::string text;  ///< "overhead-bound: 71 % of the step; graph mode would give about 3.4x".
  const char* c_str() const { return text.c_str(); }
};

namespace graph {
Diagnosis diagnose(StepBase& step, const std::function<void(StepBase&)>& call_by);
}

/// Runs the step for about a second, and at least two dozen calls (real ones, which train), and
/// says whether compute, memory or overhead bounds it and what graph mode gives: half of the calls
/// run in the other mode, in turns, kernels of its own built for them if need be. Throws what the
/// step throws, and brrr::Error inside a recorded step or under a Profile.
template <class F, class... T> Diagnosis diagnose(Step<F>& step, const T&... args) {
  return graph::diagnose(step.base(),
                         [&](graph::StepBase& by) { static_cast<void>(step.run_by(by, args...)); });
}

}  // namespace brrr
