#include "tests/bench/measure/output.h"

#include <fmt/format.h>

#include <cmath>

namespace brrr::bench {

std::string three_figures(double v) {
  const double size = std::abs(v);
  return fmt::format("{:.{}f}", v, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

Json parse_json(const std::string& text) { return Json::parse(text, nullptr, false); }

// --- traces --------------------------------------------------------------------------------------

void Trace::label(const char* what, int process, int row, const std::string& name) {
  events_.push_back(object("name ph pid tid args", what, "M", process, row, Json{{"name", name}}));
}

void Trace::row(const std::string& name) { label("thread_name", 1, ++rows_, name); }

void Trace::span(const std::string& name, Time from, Time to) {
  using Us = std::chrono::duration<double, std::micro>;
  events_.push_back(object("name ph pid tid ts dur", name, "X", 1, rows_, Us(from - start_).count(),
                           Us(to - from).count()));
}

void Trace::add(const std::string& name, const Json& events) {
  label("process_name", ++processes_, 0, name);
  for (const Json& e : events) {
    events_.push_back(e);
    events_.back()["pid"] = processes_;
  }
}

std::string Trace::json() const {
  return object("displayTimeUnit traceEvents", "ns", events_).dump(1) + "\n";
}

}  // namespace brrr::bench
