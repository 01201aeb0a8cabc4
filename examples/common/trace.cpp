#include "examples/common/trace.h"

#include <nlohmann/json.hpp>

namespace examples {

void Trace::span(const std::string& name, Clock::time_point from, Clock::time_point to) {
  using Us = std::chrono::duration<double, std::micro>;
  spans_.push_back({name, rows_.size(), Us(from - start_).count(), Us(to - from).count()});
}

std::string Trace::json() const {
  auto events = nlohmann::ordered_json::array();
  for (size_t r = 0; r < rows_.size(); ++r) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", r + 1},
                      {"args", {{"name", rows_[r]}}}});
  }
  for (const Span& s : spans_) {
    events.push_back({{"name", s.name},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", s.row},
                      {"ts", s.at_us},
                      {"dur", s.us}});
  }
  const nlohmann::ordered_json whole = {{"displayTimeUnit", "ns"}, {"traceEvents", events}};
  return whole.dump(1) + "\n";
}

}  // namespace examples
