#pragma once
// Output formats of figures: JSON, traces.

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/bench/measure/timing.h"

namespace brrr::bench {

/// A time in microseconds with three significant digits: "7.42", "74.2", "742", "7420".
std::string three_figures(double v);

using Json = nlohmann::ordered_json;

/// Parsed JSON; discarded if the text is not JSON. (Out of line: it takes g++ four seconds.)
Json parse_json(const std::string& text);

/// A JSON object of the values; `names` are separated by blanks.
template <class... T> Json object(const char* names, const T&... values) {
  std::istringstream words(names);
  Json all = Json::object();
  const auto add = [&](const auto& value) {
    std::string name;
    words >> name;
    all[name] = value;
  };
  (add(values), ...);
  return all;
}

/// Time spans for chrome://tracing and ui.perfetto.dev.
class Trace {
 public:
  using Time = Clock::time_point;
  /// Starts a row of the picture; the spans that follow belong to it.
  void row(const std::string& name);
  void span(const std::string& name, Time from, Time to);
  /// Adds another trace's events as a process of their own.
  void add(const std::string& name, const Json& events);
  /// The trace event format, as JSON.
  std::string json() const;

 private:
  void label(const char* what, int process, int row, const std::string& name);
  Time start_ = Clock::now();
  int rows_ = 0, processes_ = 1;
  Json events_ = Json::array();
};

}  // namespace brrr::bench
