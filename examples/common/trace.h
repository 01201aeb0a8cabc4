#pragma once
// Spans of time for chrome://tracing and ui.perfetto.dev.

#include <chrono>
#include <string>
#include <vector>

namespace examples {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  /// A row of the picture; the spans that follow belong to it.
  void row(const std::string& name) { rows_.push_back(name); }
  void span(const std::string& name, Clock::time_point from, Clock::time_point to);
  /// The trace event format, as JSON.
  std::string json() const;

 private:
  struct Span {
    std::string name;
    size_t row;
    double at_us, us;
  };
  Clock::time_point start_ = Clock::now();
  std::vector<std::string> rows_;
  std::vector<Span> spans_;
};

}  // namespace examples
