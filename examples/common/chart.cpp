#include "examples/common/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace examples {

namespace {

using brrr::bench::Line;

// In units of the view box, which is as wide as a figure on a large screen: text keeps its size
// there, and on a phone shrinks little.
constexpr double kWidth = 440, kHeight = 280;
constexpr double kLetter = 7.1;  // About as wide as a character at the style sheet's size.

// Few figures: of a tick.
std::string short_text(double v) {
  if (v >= 1e6) return fmt::format("{:.3g}M", v * 1e-6);
  if (v >= 1e4) return fmt::format("{:.3g}k", v * 1e-3);
  return fmt::format("{:.4g}", v);
}

double width_of(const std::string& text) { return kLetter * static_cast<double>(text.size()); }

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // On the picture.

  double at(double v) const {
    const double share = log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return from + share * (to - from);
  }
};

// The first of 1, 2 and 5 times a power of ten that is not below (or, down, not above) v.
double round_number(double v, bool down) {
  const double power = std::pow(10.0, std::floor(std::log10(v)));
  double below = power;
  for (double step : {1.0, 2.0, 5.0, 10.0}) {
    const double at = step * power;
    if (at <= v * (1 + 1e-9)) below = at;
    if (!down && at >= v * (1 - 1e-9)) return at;
  }
  return below;
}

std::vector<double> log_ticks(const Axis& a) {
  std::vector<double> all;
  const double range = a.high / a.low;
  std::vector<double> steps = {1, 2, 5};
  if (range > 5000) steps = {1};
  if (range < 8) steps = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (double power = std::pow(10.0, std::floor(std::log10(a.low))); power <= a.high * 1.001;
       power *= 10) {
    for (double step : steps) {
      const double v = step * power;
      if (v > a.low * 0.999 && v < a.high * 1.001) all.push_back(v);
    }
  }
  return all;
}

std::vector<double> even_ticks(const Axis& a, int about) {
  const double step = round_number((a.high - a.low) / about, false);
  std::vector<double> all;
  for (double v = a.low; v <= a.high + step * 1e-6; v += step) all.push_back(v);
  return all;
}

Axis y_axis(const LineChart& c, double from, double to) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Line& line : c.lines) {
    for (const auto& [x, y] : line.points) {
      if (y > 0) low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  if (high <= 0) low = high = 1;
  if (!c.log_y) {
    const double step = round_number(high / 5, false);
    return {0, step * std::ceil(high / step - 1e-9), false, from, to};
  }
  low = round_number(low, true);
  high = round_number(high, false);
  return {low, high > low ? high : 10 * low, true, from, to};
}

Axis x_axis(const LineChart& c, double from, double to) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Line& line : c.lines) {
    for (const auto& [x, y] : line.points) low = std::min(low, x), high = std::max(high, x);
  }
  if (!(high > low)) return {low / 2, low * 2, true, from, to};
  // A little air, so that no mark lies on the frame.
  const double air = std::pow(high / low, 0.03);
  return {low / air, high * air, true, from, to};
}

std::string text_at(double x, double y, const char* look, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", x, y, look,
                     html_escape(text));
}

std::string line_at(double x0, double y0, double x1, double y1, const char* look) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>",
                     x0, y0, x1, y1, look);
}

// Shapes differ as colours do, for those who cannot tell the colours apart.
std::string mark_at(size_t i, double x, double y) {
  switch (i % 4) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>", x, y);
    case 1:
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"6\"/>", x - 3,
                         y - 3);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4 7h-8z\"/>", x, y - 4.5);
    default:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4 4-4 4-4-4z\"/>", x, y - 4);
  }
}

std::string svg(const std::string& label, double height, const std::string& inside) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
                     kWidth, height, html_escape(label), inside);
}

std::string figure(const std::string& title, const std::string& picture,
                   const std::string& legend) {
  std::string t =
      fmt::format("<figure><figcaption>{}</figcaption>\n", html_escape(title)) + picture;
  if (!legend.empty()) t += "<ul class=\"legend\">" + legend + "</ul>\n";
  return t + "</figure>\n";
}

std::string legend_item(const std::string& sample, const std::string& name) {
  return fmt::format(
      "<li><svg viewBox=\"0 0 30 12\" class=\"sample\" aria-hidden=\"true\">{}</svg>{}</li>",
      sample, html_escape(name));
}

std::string frame_of(const LineChart& c, const Axis& x, const Axis& y) {
  std::string t;
  for (double v : y.log ? log_ticks(y) : even_ticks(y, 5)) {
    t += line_at(x.from, y.at(v), x.to, y.at(v), "grid");
    t += text_at(x.from - 5, y.at(v) + 4, "end", short_text(v));
  }
  std::vector<double> ticks;
  for (const auto& point : c.lines.at(0).points) ticks.push_back(point.first);
  double free = -kWidth;  // Ticks are the points; those without room have no text.
  for (double v : ticks) {
    const std::string text = c.x_text ? c.x_text(v) : short_text(v);
    const double at = x.at(v), half = width_of(text) / 2;
    t += line_at(at, y.from, at, y.from + 4, "axis");
    if (at - half < free) continue;
    free = at + half + 5;
    t += text_at(std::min(at, kWidth - half), y.from + 17, "mid", text);
  }
  t +=
      line_at(x.from, y.from, x.to, y.from, "axis") + line_at(x.from, y.from, x.from, y.to, "axis");
  t += text_at((x.from + x.to) / 2, kHeight - 4, "mid dim", c.x_label);
  return t + fmt::format(
                 "<text transform=\"translate(10 {:.1f}) rotate(-90)\" "
                 "class=\"mid dim\">{}</text>",
                 (y.from + y.to) / 2, html_escape(c.y_label));
}

std::string line_text(const Line& line, size_t i, bool limit, const Axis& x, const Axis& y) {
  std::string path, marks;
  for (const auto& [px, py] : line.points) {
    if (y.log && !(py > 0)) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.at(px), y.at(py));
    if (!limit) marks += mark_at(i, x.at(px), y.at(py));
  }
  return fmt::format(
      "<g class=\"c{}{}\"><path d=\"{}\" class=\"line\"/><g class=\"marks\">{}</g></g>", i % 6,
      limit ? " limit" : "", path, marks);
}

// Where the picture is inside its axes' labels.
struct Margins {
  double left = 58, right = 12, top = 10, bottom = 40;
};

}  // namespace

std::string html_escape(const std::string& text) {
  std::string t;
  for (char c : text) {
    switch (c) {
      case '&':
        t += "&amp;";
        break;
      case '<':
        t += "&lt;";
        break;
      case '>':
        t += "&gt;";
        break;
      case '"':
        t += "&quot;";
        break;
      case '\'':
        t += "&#39;";
        break;
      default:
        t += c;
    }
  }
  return t;
}

std::string figure_html(const LineChart& c) {
  const Margins m;
  const Axis x = x_axis(c, m.left, kWidth - m.right), y = y_axis(c, kHeight - m.bottom, m.top);
  std::string inside = frame_of(c, x, y), legend;
  double text_y = m.top + 10;
  for (const auto& [at, text] : c.verticals) {
    if (at < x.low || at > x.high) continue;
    inside += line_at(x.at(at), y.from, x.at(at), y.to, "mark");
    const bool left = x.at(at) > kWidth / 2;
    inside += text_at(x.at(at) + (left ? -5 : 5), text_y, left ? "end halo" : "halo", text);
    text_y += 14;
  }
  for (size_t i = 0; i < c.lines.size(); ++i) {
    const bool limit = i + c.limits >= c.lines.size();
    inside += line_text(c.lines[i], i, limit, x, y);
    const std::string sample = fmt::format(
        "<g class=\"c{}{}\"><path d=\"M0 6L30 6\" class=\"line\"/>"
        "<g class=\"marks\">{}</g></g>",
        i % 6, limit ? " limit" : "", limit ? "" : mark_at(i, 15, 6));
    legend += legend_item(sample, c.lines[i].name);
  }
  if (c.lines.size() < 2) legend.clear();
  return figure(c.title,
                svg(fmt::format("{}: {} over {}", c.title, c.y_label, c.x_label), kHeight, inside),
                legend);
}

namespace {

std::string bar_rect(size_t part, double x0, double x1, double y, double height) {
  const std::string box =
      fmt::format("x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"", x0, y,
                  std::max(0.0, x1 - x0), height);
  std::string t = fmt::format("<rect {} class=\"c{} bar\"/>", box, part % 6);
  if (part % 6 > 0) t += fmt::format("<rect {} fill=\"url(#h{})\"/>", box, part % 6);
  return t;
}

double total(const BarChart::Bar& b) {
  double sum = 0;
  for (double v : b.values) sum += v;
  return sum;
}

Axis bar_axis(const BarChart& c) {
  double label = 0, text = 0, most = c.most;
  for (const BarChart::Bar& b : c.bars) {
    label = std::max(label, width_of(b.label));
    text = std::max(text, width_of(b.text));
    if (c.most == 0) most = std::max({most, total(b), c.mark});
  }
  if (most <= 0) most = 1;
  return {0, most, false, std::min(label, 190.0) + 10, kWidth - std::max(text + 8, 16.0)};
}

}  // namespace

std::string figure_html(const BarChart& c) {
  constexpr double row = 21, thick = 14, gap = 7, top = 6;
  const Axis x = bar_axis(c);
  std::string bars, legend;
  double y = top;
  for (size_t i = 0; i < c.bars.size(); ++i) {
    const BarChart::Bar& b = c.bars[i];
    if (i > 0 && c.group > 0 && i % c.group == 0) y += gap;
    bars += text_at(x.from - 6, y + thick - 3, "end", b.label);
    double sum = 0;
    for (size_t p = 0; p < b.values.size(); ++p) {
      bars += bar_rect(p, x.at(sum), x.at(sum + b.values[p]), y, thick);
      sum += b.values[p];
    }
    if (!b.text.empty()) bars += text_at(x.at(sum) + 5, y + thick - 3, "", b.text);
    y += row;
  }
  std::string frame;
  for (double v : even_ticks(x, 4)) {
    frame += line_at(x.at(v), top - 4, x.at(v), y, "grid");
    frame += text_at(x.at(v), y + 15, "mid", short_text(v));
  }
  if (c.mark > 0) bars += line_at(x.at(c.mark), top - 4, x.at(c.mark), y, "mark");
  frame += text_at((x.from + x.to) / 2, y + 32, "mid dim", c.x_label);
  for (size_t p = 0; p < c.parts.size() && c.parts.size() > 1; ++p) {
    legend += legend_item(bar_rect(p, 0, 30, 0, 12), c.parts[p]);
  }
  return figure(c.title, svg(fmt::format("{}: {}", c.title, c.x_label), y + 38, frame + bars),
                legend);
}

}  // namespace examples
