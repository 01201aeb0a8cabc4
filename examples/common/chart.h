#pragma once
// Line and bar charts as inline SVG: colours and dashes come from the style sheet of `Page`.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/measure/output.h"

namespace examples {

/// `text` with what HTML would read as markup replaced.
std::string html_escape(const std::string& text);

/// A panel's lines over a logarithmic x axis.
struct LineChart : brrr::bench::Panel {
  size_t limits = 0;  ///< So many of the last lines are limits: dashed, without marks.
  std::vector<std::pair<double, std::string>> verticals = {};  ///< Where, and what is there.
  std::function<std::string(double)> x_text = {};              ///< Of a tick.
};

/// Horizontal bars, each a stack of parts, from 0.
struct BarChart {
  struct Bar {
    std::string label;
    std::vector<double> values;  ///< As `parts`.
    std::string text;            ///< At the bar's end.
  };
  std::string title, x_label;
  std::vector<std::string> parts;  ///< One needs no legend.
  std::vector<Bar> bars = {};
  size_t group = 0;  ///< A gap after so many bars; 0: none.
  double most = 0;   ///< End of the axis; 0: by the longest bar.
  double mark = 0;   ///< A line across all bars; 0: none.
};

/// A <figure> with a caption, the picture and its legend.
std::string figure_html(const LineChart& c);
std::string figure_html(const BarChart& c);

}  // namespace examples
