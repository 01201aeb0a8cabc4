#include "tests/bench/measure/output.h"

#include <fmt/format.h>

#include <cmath>

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
