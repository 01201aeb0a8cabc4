#pragma once
// The tables, the JSON and the picture of an overhead measurement.

#include <string>
#include <vector>

#include "examples/common/cells.h"
#include "examples/common/cost.h"
#include "examples/common/machine.h"

namespace examples {

struct SizeResult {
  int64_t batch = 0;
  Cells cells;
  OneTime cold, warm;
  double flops = 0, bytes = 0;  ///< Of a step, counted from its sizes.
  double copy_gbs = 0;          ///< Measured, on arrays of the step's working set.
  Split eager, graph;           ///< Of the queued times; graph is with fusion.
};

struct Report {
  std::string model, optimizer;
  int threads = 1;
  MachineLimits machine;
  double spin_ns = 0;
  std::vector<SizeResult> sizes;
};

std::string header_text(const Report& r);
std::string tables_text(const Report& r);
std::string json_text(const Report& r);
/// False where there is no gnuplot.
bool draw(const Report& r, const std::string& path);

}  // namespace examples
