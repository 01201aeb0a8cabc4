#pragma once
// What a step would take as a graph, told before it is one.

#include <vector>

#include "graph/diagnose.h"

namespace brrr::graph {

/// Microseconds of a call of the recorded step, from an eager call's kernels and its time outside
/// of them. Of the graph's kernels only operations and bytes are looked at, not times. What lies
/// between kernels follows from launch_costs(). A kernel that eager mode runs, too, takes what it
/// takes there. Those that are generated take at least what their bytes or their arithmetic take at
/// the limits, and at most that and what eager mode's, where memory does not bound them, take
/// beyond their bytes: the prediction is the middle, but no more than the kernels that they
/// replace.
double predict_graph_us(const std::vector<ProfileRow>& eager, double between_us,
                        const std::vector<ProfileRow>& graph, const StepStats& recorded,
                        Device device);

}  // namespace brrr::graph
