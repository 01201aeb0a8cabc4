#pragma once
// The text of a kernel, printed line by line.

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>

namespace brrr::program {

/// Each line as far in as braces are open there.
inline std::string indented(const std::string& text) {
  std::string all;
  size_t depth = 0;
  bool begins = true;
  for (char c : text) {
    depth -= c == '}';
    if (begins && c != '#') all.append(2 * depth, ' ');
    depth += c == '{';
    begins = c == '\n';
    all += c;
  }
  return all;
}

class Printer {
 protected:
  template <class... A> void print(fmt::format_string<A...> text, A&&... args) {
    fmt::format_to(std::back_inserter(text_), text, std::forward<A>(args)...);
  }
  /// What has been printed since the last time.
  std::string printed() { return indented(std::exchange(text_, {})); }

  std::string text_;
};

}  // namespace brrr::program
