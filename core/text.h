#pragma once
// Text for people: of messages, of tables, of pictures.

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace brrr {

/// What somebody else wrote, for messages: cut after `most` bytes, control characters as '?'.
inline std::string shown(const std::string& text, size_t most = 80) {
  std::string s = text.substr(0, most);
  for (char& c : s) c = static_cast<unsigned char>(c) < 32 ? '?' : c;
  return s.size() < text.size() ? s + "..." : s;
}

/// The first lines of a text, and whether there are more.
inline std::string first_lines(const std::string& text, int most = 15) {
  size_t end = 0;
  for (int line = 0; line < most && end < text.size(); ++line) {
    end = std::min(text.find('\n', end), text.size() - 1) + 1;
  }
  return text.substr(0, end) + (end < text.size() ? "[...]\n" : "");
}

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
