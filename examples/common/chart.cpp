#include "examples/common/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "core/text.h"

namespace examples {

namespace {

// The colours are distinguishable to colour-blind people (blue and purple against orange and green)
// and in black and white: neighbours in a bar differ in lightness.
constexpr const char* kPictureStyle = R"css(
:root { color-scheme: light dark; --bg: #fff; --fg: #1b1d21; --dim: #555b66; --rule: #d9dce1;
  --c0: #a0387a; --c1: #009e73; --c2: #0b4f8a; --c3: #6cb9ec; --c4: #de6a0e; --c5: #f9c978;
  --c6: #9aa0a8; }
@media screen and (prefers-color-scheme: dark) {
  :root { --bg: #15171a; --fg: #e6e7e9; --dim: #a3a9b3; --rule: #383c43; --c0: #c766a4;
    --c1: #2fc49a; --c2: #2873b8; --c3: #8fcdf5; --c4: #dd6a1f; --c5: #ffd796; }
}
svg text { font: 13px system-ui, sans-serif; fill: var(--fg); }
svg .title { font-size: 14px; font-weight: 600; }
svg .mid { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .dim { fill: var(--dim); }
svg .halo { paint-order: stroke; stroke: var(--bg); stroke-width: 4px; }
svg .in { font-size: 11px; text-anchor: middle; fill: #111; }
svg .in.c0, svg .in.c2 { fill: #fff; }
.paper { fill: var(--bg); }
.grid { stroke: var(--rule); }
.axis { stroke: var(--dim); }
.mark { stroke: var(--fg); stroke-dasharray: 3 3; }
.line { fill: none; stroke: var(--c); stroke-width: 2; }
.c1 .line { stroke-dasharray: 7 3; }
.limit .line { stroke: var(--dim); stroke-width: 1.5; stroke-dasharray: 5 4; }
.c3.limit .line { stroke-dasharray: 1.5 3; }
.marks, .bar { fill: var(--c); }
.bar { stroke: var(--bg); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); }
)css";

// In units of the view box, which is as wide as a figure on a phone, so that text has its nominal
// size there and grows little on a large screen.
constexpr double kWidth = 400;
constexpr double kLetter = 7.9;  // The width of a character in a wide font, at the style's size.

// A tick's value with few digits.
std::string short_text(double v) {
  if (v >= 1e6) return fmt::format("{:.3g}M", v * 1e-6);
  if (v >= 1e4) return fmt::format("{:.3g}k", v * 1e-3);
  return fmt::format("{:.4g}", v);
}

double width_of(const std::string& text) { return kLetter * static_cast<double>(text.size()); }

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // Picture coordinates of low and high.

  double at(double v) const {
    const double share = log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return from + share * (to - from);
  }
};

// Rounds v up (or down) to 1, 2 or 5 times a power of ten.
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

// The minimum and maximum of the points' positive coordinates.
std::pair<double, double> range_of(const LineChart& c, double std::pair<double, double>::*of) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Line& line : c.lines) {
    for (const auto& point : line.points) {
      if (point.*of > 0) low = std::min(low, point.*of), high = std::max(high, point.*of);
    }
  }
  return {low, high};
}

Axis y_axis(const LineChart& c, double from, double to) {
  auto [low, high] = range_of(c, &std::pair<double, double>::second);
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
  const auto [low, high] = range_of(c, &std::pair<double, double>::first);
  if (!(high > low)) return {low / 2, low * 2, true, from, to};
  // A margin, so that no mark lies on the frame.
  const double air = std::pow(high / low, 0.03);
  return {low / air, high * air, true, from, to};
}

std::string text_at(double x, double y, const std::string& look, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>", x, y, look,
                     html_escape(text));
}

std::string line_at(double x0, double y0, double x1, double y1, const char* look) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>",
                     x0, y0, x1, y1, look);
}

// Lines also differ by the shape of their marks, for readers who cannot distinguish the colours.
std::string mark_at(size_t i, double x, double y) {
  if (i == 0) return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>", x, y);
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"6\"/>", x - 3, y - 3);
}

struct Key {
  std::string sample, name;  // SVG of 24 by 12; label.
};

// A picture with its title and legend; drawing continues at its height.
Picture begin_picture(const std::string& name, const std::string& label, const std::string& title,
                      const std::vector<Key>& keys) {
  constexpr double row = 18, after_sample = 29, after_name = 14;
  Picture p{name, label, text_at(0, 14, "title", title), 26};
  double x = 0;
  for (const Key& key : keys) {
    const double width = after_sample + width_of(key.name);
    if (x > 0 && x + width > kWidth) x = 0, p.height += row;
    p.inside += fmt::format("<g transform=\"translate({:.1f} {:.1f})\">{}{}</g>", x, p.height,
                            key.sample, text_at(after_sample, 11, "", key.name));
    x += width + after_name;
  }
  if (!keys.empty()) p.height += row + 4;
  return p;
}

std::string frame_of(const LineChart& c, const Axis& x, const Axis& y) {
  std::string t;
  for (double v : y.log ? log_ticks(y) : even_ticks(y, 5)) {
    t += line_at(x.from, y.at(v), x.to, y.at(v), "grid");
    t += text_at(x.from - 5, y.at(v) + 4, "end", short_text(v));
  }
  // A tick at every point; as many labels as fit, including the last.
  const auto& points = c.lines.at(0).points;
  const auto text_of = [&](double v) { return c.x_text ? c.x_text(v) : short_text(v); };
  double widest = 0;
  for (const auto& point : points) widest = std::max(widest, width_of(text_of(point.first)) + 5);
  const auto count = static_cast<double>(points.size());
  const auto every = static_cast<size_t>(std::ceil(widest * count / (x.to - x.from)));
  for (size_t i = 0; i < points.size(); ++i) {
    const double at = x.at(points[i].first);
    t += line_at(at, y.from, at, y.from + 4, "axis");
    if ((points.size() - 1 - i) % every > 0) continue;
    const std::string text = text_of(points[i].first);
    t += text_at(std::min(at, kWidth - width_of(text) / 2), y.from + 17, "mid", text);
  }
  t +=
      line_at(x.from, y.from, x.to, y.from, "axis") + line_at(x.from, y.from, x.from, y.to, "axis");
  t += text_at((x.from + x.to) / 2, y.from + 34, "mid dim", c.x_label);
  return t + fmt::format(
                 "<text transform=\"translate(12 {:.1f}) rotate(-90)\" class=\"mid dim\">{}</text>",
                 (y.from + y.to) / 2, html_escape(c.y_label));
}

std::string line_group(size_t i, bool limit, const std::string& path, const std::string& marks) {
  return fmt::format(
      "<g class=\"c{}{}\"><path d=\"{}\" class=\"line\"/><g class=\"marks\">{}</g></g>", i,
      limit ? " limit" : "", path, marks);
}

std::string line_text(const Line& line, size_t i, bool limit, const Axis& x, const Axis& y) {
  std::string path, marks;
  for (const auto& [px, py] : line.points) {
    if (y.log && !(py > 0)) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x.at(px), y.at(py));
    if (!limit) marks += mark_at(i, x.at(px), y.at(py));
  }
  return line_group(i, limit, path, marks);
}

std::string bar_rect(Colour look, double x, double y, double width, double height) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" class=\"c{} bar\"/>", x,
      y, width, height, static_cast<int>(look));
}

double total(const BarChart::Bar& b) {
  return std::accumulate(b.values.begin(), b.values.end(), 0.0);
}

// Labels take less than half of the width; longer ones are wrapped.
constexpr double kLabel = 175, kLabelLine = 14;
std::vector<std::string> label_lines(const BarChart::Bar& b) {
  return brrr::wrapped(b.label, static_cast<size_t>(kLabel / kLetter));
}

// The axis takes the width that the texts on both sides of the bars leave.
Axis bar_axis(const BarChart& c) {
  double label = width_of(c.y_label), most = c.most;
  for (const BarChart::Bar& b : c.bars) {
    for (const std::string& line : label_lines(b)) label = std::max(label, width_of(line));
    if (c.most == 0) most = std::max({most, total(b), c.mark});
  }
  if (most <= 0) most = 1;
  const double from = std::min(label, kLabel) + 8;
  double scale = (kWidth - 16 - from) / most;
  for (const BarChart::Bar& b : c.bars) {
    if (total(b) > 0) scale = std::min(scale, (kWidth - from - 6 - width_of(b.text)) / total(b));
  }
  return {0, most, false, from, from + scale * most};
}

std::string bar_text(const BarChart& c, const BarChart::Bar& b, const Axis& x, double y,
                     double thick) {
  std::string t;
  const std::vector<std::string> label = label_lines(b);
  for (size_t i = 0; i < label.size(); ++i) {
    t += text_at(x.from - 6, y + thick - 3 + kLabelLine * static_cast<double>(i), "end", label[i]);
  }
  y += kLabelLine * static_cast<double>(label.size() - 1) / 2;
  double sum = 0;
  for (size_t i = 0; i < b.values.size(); ++i) {
    const double from = x.at(sum), width = x.at(sum += b.values[i]) - from;
    const Colour look = c.parts[i].second;
    if (width >= 0.1) t += bar_rect(look, from, y, width, thick);
    const std::string figure = fmt::format("{:.0f}", b.values[i]);
    if (!c.figures || width < width_of(figure) + 2) continue;
    t += text_at(from + width / 2, y + thick - 4, fmt::format("in c{}", int{look}), figure);
  }
  if (!b.text.empty()) t += text_at(x.at(sum) + 5, y + thick - 3, "halo", b.text);
  return t;
}

}  // namespace

std::string html_escape(const std::string& text) {
  static const std::map<char, std::string> names = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string t;
  for (char c : text) t += names.contains(c) ? names.at(c) : std::string(1, c);
  return t;
}

const char* picture_style() { return kPictureStyle; }

std::string Picture::svg() const {
  return fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
                     kWidth, height, html_escape(label), inside);
}

std::string svg_file(const std::vector<Picture>& pictures, size_t columns) {
  constexpr double margin = 12;
  std::string inside, label;
  double width = 0, height = 0, x = 0, y = 0;
  for (size_t i = 0; i < pictures.size(); ++i) {
    const Picture& p = pictures[i];
    if (i % columns == 0) x = 0, y = height;
    inside += fmt::format("<g transform=\"translate({} {:.0f})\">{}</g>\n", x + margin, y + margin,
                          p.inside);
    label += (label.empty() ? "" : "; ") + p.label;
    x += kWidth + 2 * margin;
    width = std::max(width, x);
    height = std::max(height, y + p.height + 2 * margin);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0} {1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<style>{3}</style>\n"
      "<rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{4}</svg>\n",
      width, height, html_escape(label), kPictureStyle, inside);
}

Picture draw(const std::string& name, const LineChart& c) {
  constexpr double left = 58, right = 12, tall = 210, below = 40;
  const auto is_limit = [&](size_t i) { return i + c.limits >= c.lines.size(); };
  std::vector<Key> keys;
  for (size_t i = 0; i < c.lines.size() && c.lines.size() > 1; ++i) {
    const bool limit = is_limit(i);
    keys.push_back(
        {line_group(i, limit, "M0 6H24", limit ? "" : mark_at(i, 12, 6)), c.lines[i].name});
  }
  Picture p = begin_picture(name, fmt::format("{}: {} over {}", c.title, c.y_label, c.x_label),
                            c.title, keys);
  const Axis x = x_axis(c, left, kWidth - right), y = y_axis(c, p.height + tall, p.height + 4);
  p.inside += frame_of(c, x, y);
  if (c.mark >= x.low && c.mark <= x.high) {
    const double at = x.at(c.mark);
    const bool on_left = at > kWidth / 2;
    p.inside += line_at(at, y.from, at, y.to, "mark");
    p.inside +=
        text_at(at + (on_left ? -5 : 5), y.to + 12, on_left ? "end halo" : "halo", c.mark_name);
  }
  for (size_t i = 0; i < c.lines.size(); ++i) {
    p.inside += line_text(c.lines[i], i, is_limit(i), x, y);
  }
  p.height += tall + below;
  return p;
}

Picture draw(const std::string& name, const BarChart& c) {
  constexpr double row = 19, thick = 15, gap = 6;
  std::vector<Key> keys;
  for (const auto& [part, look] : c.parts) {
    if (c.parts.size() > 1) keys.push_back({bar_rect(look, 0, 0, 24, 12), part});
  }
  if (c.mark > 0) keys.push_back({line_at(0, 6, 24, 6, "mark"), c.mark_name});
  Picture p = begin_picture(name, fmt::format("{}: {}", c.title, c.x_label), c.title, keys);
  const Axis x = bar_axis(c);
  if (!c.y_label.empty()) {
    p.inside += text_at(x.from - 6, p.height + 10, "end dim", c.y_label);
    p.height += 16;
  }
  const double top = p.height - 2;
  std::string bars;
  for (size_t i = 0; i < c.bars.size(); ++i) {
    if (i > 0 && c.group > 0 && i % c.group == 0) p.height += gap;
    bars += bar_text(c, c.bars[i], x, p.height, thick);
    p.height += row + kLabelLine * static_cast<double>(label_lines(c.bars[i]).size() - 1);
  }
  for (double v : even_ticks(x, 4)) {
    p.inside += line_at(x.at(v), top, x.at(v), p.height, "grid");
    p.inside += text_at(x.at(v), p.height + 15, "mid", short_text(v));
  }
  if (c.mark > 0) bars += line_at(x.at(c.mark), top, x.at(c.mark), p.height, "mark");
  p.inside += text_at((x.from + x.to) / 2, p.height + 32, "mid dim", c.x_label) + bars;
  p.height += 38;
  return p;
}

}  // namespace examples
