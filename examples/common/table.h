#pragma once
// Right-aligned columns.

#include <string>
#include <vector>

namespace examples {

class Table {
 public:
  explicit Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// A time in microseconds with three figures: "7.42", "74.2", "742", "7420".
std::string three_figures(double v);

}  // namespace examples
