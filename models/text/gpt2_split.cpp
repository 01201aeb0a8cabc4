#include "models/text/gpt2_split.h"

#include <cstdint>
#include <vector>

#include "models/text/unicode_classes.h"
#include "models/text/utf8.h"

namespace brrr::data {

namespace {

enum class Class : uint8_t { Other, Letter, Number, Space };

// The class of each code point, up to the last letter or number.
std::vector<Class> make_classes() {
  std::vector<Class> classes;
  const auto add = [&](const char* runs, Class which) {
    const auto next = [&] {
      size_t n = 0;
      for (int shift = 0;; shift += 5) {
        const size_t digit = static_cast<size_t>(*runs++ - '0');
        n += (digit & 31) << shift;
        if (digit < 32) return n;
      }
    };
    for (size_t at = 0; *runs;) {
      const size_t first = at + next();
      at = first + next();
      if (classes.size() < at) classes.resize(at);
      std::fill_n(classes.data() + first, at - first, which);
    }
  };
  add(unicode::kLetters, Class::Letter);
  add(unicode::kNumbers, Class::Number);
  for (char32_t c : {0x20, 0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000}) {
    classes[c] = Class::Space;
  }
  for (char32_t c = 0x09; c <= 0x0d; ++c) classes[c] = Class::Space;
  for (char32_t c = 0x2000; c <= 0x200a; ++c) classes[c] = Class::Space;
  return classes;
}

struct Character {
  Class which;
  size_t end;
};

Character character(std::string_view text, size_t at) {
  static const auto& classes = *new std::vector<Class>(make_classes());
  const CodePoint c = decode_utf8(text, at);
  return {c.value < classes.size() ? classes[c.value] : Class::Other, at + c.length};
}

size_t end_of_run(std::string_view text, size_t at, Class which) {
  while (at < text.size()) {
    const Character c = character(text, at);
    if (c.which != which) break;
    at = c.end;
  }
  return at;
}

}  // namespace

size_t gpt2_piece_end(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    for (std::string_view end : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      if (text.substr(at + 1).starts_with(end)) return at + 1 + end.size();
    }
  }
  const Character first = character(text, at);
  if (first.which != Class::Space) return end_of_run(text, first.end, first.which);
  const size_t end = end_of_run(text, first.end, Class::Space);
  if (end == text.size()) return end;
  if (end == first.end) {
    // A single blank belongs to the piece after it; other white space is a piece of its own.
    return text[at] == ' ' ? end_of_run(text, end, character(text, end).which) : end;
  }
  // The last of several white-space characters belongs to the next piece.
  size_t last = end - 1;
  while ((text[last] & 0xc0) == 0x80) --last;
  return last;
}

}  // namespace brrr::data
