#pragma once
// The tables, the JSON and the picture of an overhead measurement.

#include "examples/common/page.h"
#include "examples/common/task.h"
#include "tests/bench/measure/cells.h"
#include "tests/bench/measure/machine.h"

namespace examples {

using namespace brrr::bench;

struct SizeResult : Cells {
  int64_t batch = 0;
  OneTime cold, warm;
  Anatomy eager, graph;  ///< Of the queued times; graph is with fusion.
};

struct Report {
  std::string model;
  std::string one_kernel;  ///< What eager does in one kernel each, as all modes do.
  std::string optimizer;
  Limits limits;
  std::vector<SizeResult> sizes;
};

/// One model's tables.
std::string tables_text(const Report& r);
/// A model on several devices in one table, and from which size on overhead is the lesser part of
/// a step; empty for one device.
std::string devices_text(const std::vector<Report>& all);
/// Why cells have no figures, each reason once; empty if all have.
std::string fallbacks_text(const std::vector<Report>& all);
/// What belongs under the tables of all models: explanations, then the gains.
std::string notes_text(const std::vector<Report>& all);
/// One report is an object, several (of models or devices) are the array "models" in one.
std::string json_text(const std::vector<Report>& all);
/// A file with a row of pictures for each report.
std::string charts_svg(const std::vector<Report>& all);

}  // namespace examples
