#pragma once
// What figures are written as: JSON, traces.

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/bench/measure/timing.h"

namespace brrr::bench {

/// A time in microseconds with three figures: "7.42", "74.2", "742", "7420".
std::string three_figures(double v);

using Json = nlohmann::ordered_json;

/// What the text says; discarded where it is no JSON. (In one file: it takes g++ four seconds.)
Json parse_json(const std::string& text);

/// An object of the values, under as many names with blanks between them.
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

/// Spans of time for chrome://tracing and ui.perfetto.dev.
class Trace {
 public:
  using Time = Clock::time_point;
  /// A row of the picture; the spans that follow belong to it.
  void row(const std::string& name);
  void span(const std::string& name, Time from, Time to);
  /// Another trace's, as a process of its own.
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
