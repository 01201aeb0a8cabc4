#pragma once
// Pictures, drawn by gnuplot where it is installed.

#include <string>
#include <utility>
#include <vector>

namespace examples {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
};
struct Panel {
  std::string title, x_label, y_label;
  std::vector<Line> lines;
  bool log_y = true;
  bool falls = false;  ///< Its lines begin high: the key stands below them.
};

/// Panels over a logarithmic x axis, so many side by side, as an SVG file. Each panel has a line,
/// whose points ascend. False where there is no gnuplot; throws std::runtime_error if it fails.
bool plot_svg(const std::string& path, const std::string& title, const std::vector<Panel>& panels,
              size_t columns);

}  // namespace examples
