#include "examples/lab/lab.h"

#include <algorithm>

namespace examples::lab {

std::string disturbance(const Lab& lab) {
  const auto [lo, hi] = std::minmax_element(lab.peaks.begin(), lab.peaks.end());
  std::string t;
  if (*lo < 0.93 * *hi) {
    t = fmt::format("the peak of a core varied from {:.0f} to {:.0f} GFLOP/s", *lo, *hi);
  }
  if (lab.share < 0.97) {
    t += fmt::format("{}other programs took up to {:.0f} % of the core", t.empty() ? "" : "; ",
                     100 * (1 - lab.share));
  }
  if (t.empty()) return t;
  return "The machine was not quiet: " + t +
         ". Times are longer for it, and count as overhead. Repeat this on a quiet machine.";
}

void check_same(Lab& lab, const std::string& where, const std::vector<Tensor>& graph,
                const std::vector<Tensor>& eager, const brrr::StepStats& stats) {
  ++lab.compared;
  if (stats.fallbacks > 0) lab.complain(where, stats.last_fallback);
  if (!same_bits(graph, eager)) lab.complain(where, "graph mode's result is not eager's");
}

BarChart::Bar mode_bar(const std::string& label, double value) {
  const bool graph = label.find("graph") != std::string::npos;
  return {label, {graph ? 0 : value, graph ? value : 0}, three_figures(value)};
}

std::string bytes_text(double bytes) {
  if (bytes >= 1 << 20) return fmt::format("{:.3g} MB", bytes / (1 << 20));
  return fmt::format("{:.3g} KB", bytes / (1 << 10));
}

}  // namespace examples::lab
