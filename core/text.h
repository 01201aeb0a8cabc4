#pragma once
// Text for users: messages, tables, pictures.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace brrr {

// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.

/// The code point that starts at byte `at` (within the text) and its length in bytes. Where the
/// bytes are not UTF-8 the length is 1 and the code point kInvalid.
struct CodePoint {
  static constexpr char32_t kInvalid = 0xffffffff;
  char32_t value;
  size_t length;
  bool valid() const { return value != kInvalid; }
};

inline CodePoint decode_utf8(std::string_view text, size_t at) {
  constexpr CodePoint bad{CodePoint::kInvalid, 1};
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const auto length = static_cast<size_t>(std::countl_one(first));
  if (first < 0xc2 || first > 0xf4 || length > text.size() - at) return bad;
  char32_t value = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return bad;
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (value < kLeast[length] || value > 0x10ffff || surrogate) return bad;
  return {value, length};
}

/// Whether a terminal obeys it instead of showing it: control characters, and those that change the
/// direction of the text that follows.
constexpr bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

/// Foreign text for messages: cut after `most` bytes, control characters as '?'.
inline std::string shown(const std::string& text, size_t most = 80) {
  const std::string_view part = std::string_view(text).substr(0, most);
  std::string s;
  for (size_t at = 0; at < part.size();) {
    const CodePoint c = decode_utf8(part, at);
    const char32_t value = c.valid() ? c.value : static_cast<unsigned char>(part[at]);
    s += is_control(value) ? "?" : part.substr(at, c.length);
    at += c.length;
  }
  return part.size() < text.size() ? s + "..." : s;
}

/// The first lines of a text; "[...]" marks that there are more.
inline std::string first_lines(const std::string& text, int most = 15) {
  size_t end = 0;
  for (int line = 0; line < most && end < text.size(); ++line) {
    end = std::min(text.find('\n', end), text.size() - 1) + 1;
  }
  return text.substr(0, end) + (end < text.size() ? "[...]\n" : "");
}

/// The words of `text` in lines of at most `most` characters. A longer word is cut.
inline std::vector<std::string> wrapped(const std::string& text, size_t most) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  std::vector<std::string> lines(1);
  for (size_t end = 0, at; (at = text.find_first_not_of(kSpace, end)) != text.npos;) {
    end = std::min(text.find_first_of(kSpace, at), text.size());
    const std::string word = text.substr(at, end - at);
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
