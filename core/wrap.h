#pragma once
// Lines of text, for a terminal or a picture.

#include <sstream>
#include <string>
#include <vector>

namespace brrr {

/// The words of `text` in lines of at most `most` characters. A longer word is cut.
inline std::vector<std::string> wrapped(const std::string& text, size_t most) {
  std::vector<std::string> lines(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > most) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    while (lines.back().size() > most) {
      const std::string rest = lines.back().substr(most);
      lines.back().resize(most);
      lines.push_back(rest);
    }
  }
  return lines;
}

}  // namespace brrr
