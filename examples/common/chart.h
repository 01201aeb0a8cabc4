#pragma once
// Line and bar charts as SVG, for a page and as files of their own.

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// `text` with what HTML would read as markup replaced.
std::string html_escape(const std::string& text);

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points = {};  ///< Rising.
};
/// Lines over a logarithmic x axis.
struct LineChart {
  std::string title, x_label, y_label;
  std::vector<Line> lines = {};
  bool log_y = true;
  size_t limits = 0;           ///< So many of the last lines are limits: dashed, without marks.
  double mark = 0;             ///< A vertical line there; 0: none.
  std::string mark_name = {};  ///< What it is.
  std::function<std::string(double)> x_text = {};  ///< Of a tick.
};

/// The colours of the style sheet, by what they stand for everywhere.
enum Look { kEager, kGraph, kCompute, kMemory, kOverhead, kBetween, kOther };

/// Horizontal bars, each a stack of parts, from 0.
struct BarChart {
  struct Bar {
    std::string label;
    std::vector<double> values;  ///< As `parts`.
    std::string text;            ///< At the bar's end.
  };
  std::string title, x_label, y_label = {};
  std::vector<std::pair<std::string, Look>> parts;  ///< One needs no key.
  std::vector<Bar> bars = {};
  size_t group = 0;            ///< A gap after so many bars; 0: none.
  double most = 0;             ///< End of the axis; 0: by the longest bar.
  double mark = 0;             ///< A line across all bars; 0: none.
  std::string mark_name = {};  ///< What it is.
  bool figures = false;        ///< Parts with room for it show their value.
};

/// What is inside an <svg>.
struct Picture {
  std::string name;   ///< Of its file: "roofline".
  std::string label;  ///< For those who cannot see it.
  std::string inside;
  double height;  ///< All are as wide.

  std::string svg() const;  ///< For a page whose style has picture_style().
};
Picture draw(const std::string& name, const LineChart& c);
Picture draw(const std::string& name, const BarChart& c);

const char* picture_style();
/// A file that shows the pictures, so many side by side.
std::string svg_file(const std::vector<Picture>& pictures, size_t columns = 100);

}  // namespace examples
