#include "examples/common/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace examples {

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

}  // namespace examples
