#include "tests/bench/measure/output.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace brrr::bench {

// --- tables --------------------------------------------------------------------------------------

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      text += fmt::format("  {:>{}}", rows_[r][c], width[c]);
    }
    text += '\n';
    if (r > 0) continue;
    for (size_t w : width) text += "  " + std::string(w, '-');
    text += '\n';
  }
  return text;
}

std::string three_figures(double v) {
  const double size = std::abs(v);
  return fmt::format("{:.{}f}", v, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

// --- pictures ------------------------------------------------------------------------------------

// gnuplot's single-quoted strings know one escape: a doubled quote.
static std::string quoted(const std::string& text) {
  std::string s = "'";
  for (char c : text) s += c == '\'' ? "''" : std::string(1, c);
  return s + "'";
}

static std::string panel_text(const Panel& p) {
  std::string t = fmt::format("set title {} noenhanced\nset xlabel {}\nset ylabel {}\n",
                              quoted(p.title), quoted(p.x_label), quoted(p.y_label));
  t += p.log_y ? "set logscale xy\n" : "unset logscale y\nset logscale x\nset yrange [0:*]\n";
  // The data's own range: gnuplot would round it up to powers of ten.
  const auto& points = p.lines.at(0).points;
  t += fmt::format("set xrange [{}:{}]\nset key {}\n", points.front().first * 0.9,
                   points.back().first * 1.1, p.log_y && !p.falls ? "top left" : "bottom left");
  std::string plots;
  for (size_t i = 0; i < p.lines.size(); ++i) {
    t += fmt::format("$line{} << EOD\n", i);
    for (const auto& [x, y] : p.lines[i].points) t += fmt::format("{:.9g} {:.9g}\n", x, y);
    t += "EOD\n";
    plots += fmt::format(
        "{}$line{} using 1:2:xtic(1) with linespoints lw 2 pt 7 ps 0.5 title {} noenhanced",
        i ? ", " : "plot ", i, quoted(p.lines[i].name));
  }
  return t + plots + "\n";
}

void plot_svg(const std::string& path, const std::string& title, const std::vector<Panel>& panels,
              size_t columns) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) {
    fmt::print("gnuplot is not installed: {} is not drawn\n", path);
    return;
  }
  const size_t rows = (panels.size() + columns - 1) / columns;
  std::string text = fmt::format(
      "set terminal svg size {},{} background rgb 'white' font 'sans-serif,12'\n"
      "set output {}\nset grid lc rgb '#dddddd'\nset xtics font ',9'\n"
      "set multiplot layout {},{} title {} noenhanced\n",
      560 * columns, 420 * rows, quoted(path), rows, columns, quoted(title));
  for (const Panel& p : panels) text += panel_text(p);
  text += "unset multiplot\n";
  FILE* pipe = popen("gnuplot", "w");
  const bool sent = pipe && std::fwrite(text.data(), 1, text.size(), pipe) == text.size();
  if (!pipe || pclose(pipe) != 0 || !sent) {
    throw std::runtime_error("gnuplot could not draw " + path);
  }
}

// --- traces --------------------------------------------------------------------------------------

void Trace::span(const std::string& name, Time from, Time to) {
  using Us = std::chrono::duration<double, std::micro>;
  spans_.push_back({name, rows_.size(), Us(from - start_).count(), Us(to - from).count()});
}

void Trace::add(const std::string& name, const Json& events) {
  ++processes_;
  others_.push_back(
      object("name ph pid tid args", "process_name", "M", processes_, 0, Json{{"name", name}}));
  for (const Json& e : events) {
    others_.push_back(e);
    others_.back()["pid"] = processes_;
  }
}

std::string Trace::json() const {
  Json events = others_;
  for (size_t r = 0; r < rows_.size(); ++r) {
    events.push_back(
        object("name ph pid tid args", "thread_name", "M", 1, r + 1, Json{{"name", rows_[r]}}));
  }
  for (const Span& s : spans_) {
    events.push_back(object("name ph pid tid ts dur", s.name, "X", 1, s.row, s.at_us, s.us));
  }
  return object("displayTimeUnit traceEvents", "ns", events).dump(1) + "\n";
}

}  // namespace brrr::bench
