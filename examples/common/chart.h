#pragma once
// Line and bar charts as SVG, inside a page or as separate files.

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// `text` with HTML's special characters escaped.
std::string html_escape(const std::string& text);

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points = {};  ///< Sorted by x.
};
/// Lines over a logarithmic x axis.
struct LineChart {
  std::string title, x_label, y_label;
  std::vector<Line> lines = {};
  bool log_y = true;
  size_t limits = 0;           ///< The last `limits` lines are limits: dashed, without marks.
  double mark = 0;             ///< A vertical line at this x; 0: none.
  std::string mark_name = {};  ///< The label of that line.
  std::function<std::string(double)> x_text = {};  ///< Formats a tick's label.
};

/// The colours c0, c1, ... of the style sheet, by their meaning.
enum Colour { kEager, kGraph, kCompute, kMemory, kOverhead, kBetween, kOther };

/// Horizontal bars, each a stack of parts, from 0.
struct BarChart {
  struct Bar {
    std::string label;
    std::vector<double> values;  ///< One per entry of `parts`.
    std::string text;            ///< Printed at the bar's end.
  };
  std::string title, x_label, y_label = {};
  std::vector<std::pair<std::string, Colour>> parts;  ///< A single one has no legend.
  std::vector<Bar> bars = {};
  size_t group = 0;            ///< A gap after every `group` bars; 0: none.
  double most = 0;             ///< End of the axis; 0: the longest bar.
  double mark = 0;             ///< A line across all bars at this value; 0: none.
  std::string mark_name = {};  ///< The label of that line.
  bool figures = false;        ///< Parts that are wide enough show their value.
};

/// The content of an <svg> element.
struct Picture {
  std::string name;   ///< File name without extension: "roofline".
  std::string label;  ///< Text alternative (aria-label).
  std::string inside;
  double height;  ///< All pictures have the same width.

  std::string svg() const;  ///< An <svg> element for a page that includes picture_style().
};
Picture draw(const std::string& name, const LineChart& c);
Picture draw(const std::string& name, const BarChart& c);

const char* picture_style();
/// An SVG file of the pictures, in rows of `columns`.
std::string svg_file(const std::vector<Picture>& pictures, size_t columns = 100);

}  // namespace examples
