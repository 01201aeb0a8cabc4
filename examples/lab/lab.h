#pragma once
// The experiments of `lab`, each of which measures, and says what it has seen.

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

/// What all experiments share.
struct Lab {
  Limits limits;
  double seconds = 0.3;       ///< For a figure.
  std::string model = "all";  ///< Whose batches are doubled, and whose step is taken apart.
  bool quick = false;         ///< Tiny sizes: the program is tested, the figures mean nothing.
  std::string complaints;     ///< Why the figures cannot be trusted; empty if they can.
  int64_t compared = 0;       ///< Results of graph mode that were held against eager's.
  double share = 1;  ///< The least, of an experiment's time, that this thread had its core.
  std::vector<double> peaks = {};  ///< GFLOP/s of one core, before each experiment and after all.

  void complain(const std::string& where, const std::string& what) {
    complaints += fmt::format("{}: {}\n", where, what);
  }
  /// Of a float32 tensor to be measured.
  int64_t megabytes(int64_t full) const { return quick ? 1 : full; }
  bool gang() const { return limits.threads > 1; }
};

/// What an experiment leaves.
struct Section {
  std::string title;
  std::vector<std::string> seen = {};    ///< Paragraphs with this run's figures.
  std::vector<std::string> answer = {};  ///< What of it belongs at the top of the page, likewise:
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

// --- what they measure with ----------------------------------------------------------------------

/// By function, as the linker calls it; "" for those of shared libraries.
using Instructions = std::map<std::string, int64_t>;
/// Of one call in this thread, or nothing where a process may not be traced.
std::optional<Instructions> instructions(const std::function<void()>& call);

/// Why the machine was not the same all the time; empty if it was.
std::string disturbance(const Lab& lab);

/// Complains unless both results are the same, bit for bit, and no call fell back.
void check_same(Lab& lab, const std::string& where, const std::vector<Tensor>& graph,
                const std::vector<Tensor>& eager, const brrr::StepStats& stats);

/// Of a chart with the parts eager and graph, by whether the label says graph.
BarChart::Bar mode_bar(const std::string& label, double value);

std::string bytes_text(double bytes);  ///< "16 KB".

}  // namespace examples::lab
