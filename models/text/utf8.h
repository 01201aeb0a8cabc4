#pragma once
// UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <string>
#include <string_view>

namespace brrr::data {

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
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || length > text.size() - at) return bad;
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

inline bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode_utf8(text, at);
    if (!c.valid()) return false;
    at += c.length;
  }
  return true;
}

inline void append_utf8(std::string& to, char32_t c) {
  const auto put = [&](char32_t byte) { to += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr char32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  put(kLead[more] | c >> 6 * more);
  for (int i = more - 1; i >= 0; --i) put(0x80 | (c >> 6 * i & 0x3f));
}

}  // namespace brrr::data
