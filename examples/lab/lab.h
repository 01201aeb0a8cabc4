#pragma once
// The experiments of `lab`: each measures something and returns a Section of the page.

#include <brrr/brrr.h>
#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/page.h"
#include "examples/common/task.h"
#include "tests/bench/measure/cells.h"
#include "tests/bench/measure/machine.h"

namespace examples::lab {

using brrr::Tensor;

/// State shared by all experiments.
struct Lab {
  Limits limits;
  double seconds = 0.3;       ///< Measuring time per figure.
  std::string model = "all";  ///< The model for batch doubling and the breakdown of a step.
  bool quick = false;         ///< Tiny sizes, to test the program; the figures mean nothing.
  std::string complaints;     ///< Why the figures cannot be trusted; empty if they can.
  int64_t compared = 0;       ///< Number of graph mode results compared with eager mode's.
  double share = 1;  ///< The smallest share of an experiment's time that this thread had its core.
  std::vector<double> peaks = {};  ///< GFLOP/s of one core, before each experiment and after all.

  void complain(const std::string& where, const std::string& what) {
    complaints += fmt::format("{}: {}\n", where, what);
  }
  /// The size of a float32 tensor to measure with.
  int64_t megabytes(int64_t full) const { return quick ? 1 : full; }
  bool gang() const { return limits.threads > 1; }
};

/// The result of an experiment.
struct Section {
  std::string title;
  std::vector<std::string> findings = {};  ///< Paragraphs with this run's figures.
  std::vector<std::string> answer = {};    ///< Paragraphs and pictures for the top of the page.
  std::vector<Picture> answer_pictures = {}, pictures = {};
  std::vector<Sheet> sheets = {};
  std::string note = {};  ///< How it was measured.
};

// --- the experiments, in the order of the page -------------------------------------------------

Section limits_of_machine(Lab& lab);
Section batch_doubling(Lab& lab);
Section where_time_goes(Lab& lab);
Section roofline(Lab& lab);
Section fusion(Lab& lab);
Section activations(Lab& lab);
Section rematerialisation(Lab& lab);
Section anatomy(Lab& lab);
Section verdicts(Lab& lab);
Section processes(Lab& lab);

// --- tools for measuring -------------------------------------------------------------------------

/// Instruction counts by mangled function name; "" for functions of shared libraries.
using Instructions = std::map<std::string, int64_t>;
/// The instructions of one call in this thread; empty if processes may not be traced.
std::optional<Instructions> instructions(const std::function<void()>& call);

/// How the machine's speed varied during the run; empty if it did not.
std::string disturbance(const Lab& lab);

/// Complains unless both results are the same, bit for bit, and no call fell back.
void check_same(Lab& lab, const std::string& where, const std::vector<Tensor>& graph,
                const std::vector<Tensor>& eager, const brrr::StepStats& stats);

/// A bar of a chart with the parts eager and graph: graph if the label contains "graph".
BarChart::Bar mode_bar(const std::string& label, double value);

std::string bytes_text(double bytes);  ///< "16 KB".

}  // namespace examples::lab
