#pragma once
// GPT-2's division of a text into pieces; merges never cross their borders.

#include <cstddef>
#include <string_view>

namespace brrr::data {

/// The end of the piece that starts at byte `at`, which lies within the text. The rule is the
/// published regular expression (github.com/openai/gpt-2, encoder.py):
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Letters and numbers are those of unicode_classes.h, \s is Unicode's White_Space. A byte that is
/// not UTF-8 counts as a character of no class.
size_t gpt2_piece_end(std::string_view text, size_t at);

}  // namespace brrr::data
