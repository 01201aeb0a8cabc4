#pragma once
// UTF-8 helpers, as strict as decode_utf8() (core/text.h).

#include <string>
#include <string_view>

#include "core/text.h"

namespace brrr::data {

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
