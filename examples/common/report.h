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
  Anatomy eager, graph;  ///< Breakdowns of the queued times; graph is with fusion.
};

struct Report {
  std::string model;
  std::string one_kernel;  ///< Operations that are a single kernel in every mode, eager included.
  std::string optimizer;
  Limits limits;
  std::vector<SizeResult> sizes;
};

/// One model's tables.
std::string tables_text(const Report& r);
/// Each model on several devices in one table, and the size from which on overhead is less than
/// half of a step; empty for one device.
std::string devices_text(const std::vector<Report>& all);
/// The distinct reasons why cells have no figures; empty if all have.
std::string fallbacks_text(const std::vector<Report>& all);
/// The text below the tables of all models: explanations, then the gains.
std::string notes_text(const std::vector<Report>& all);
/// One report is an object; several (of models or devices) are the array "models" of an object.
std::string json_text(const std::vector<Report>& all);
/// An SVG file with a row of pictures for each report.
std::string charts_svg(const std::vector<Report>& all);

}  // namespace examples
